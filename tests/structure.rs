//! The structure of the source: which file imports from which, and how long and how named things are.
//!
//! Imports are resolved through re-exports to the file that defines a thing. Tests and model checks are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Ident, Item, ItemUse, UseTree,
    visit::{self, Visit},
};

/// A module, be it a file or a part of one.
#[derive(Default)]
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    items: BTreeSet<String>,
    /// Names that `use` brings in, and the paths they stand for.
    names: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// All paths of two segments or more.
    paths: BTreeSet<Vec<String>>,
}

/// The modules of one crate. The first one is its root.
struct Crate(Vec<Module>);

/// Files, and what each imports from which others.
type Imports = BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(name).join("src")
}

/// `cfg(test)`, or a combination with it.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let words = list.tokens.to_string().replace(' ', "");
            words.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "test")
                && !words.contains("not(test)")
        }
        _ => false,
    })
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut all = Self(Vec::new());
        let file = root.join("lib.rs");
        let parsed = parse(&file);
        all.add(None, file, root, &parsed.items);
        all
    }

    /// Adds a module, whose files lie in `folder`.
    fn add(&mut self, parent: Option<usize>, file: PathBuf, folder: &Path, items: &[Item]) -> usize {
        let at = self.0.len();
        self.0.push(Module { file, parent, ..Module::default() });
        for item in items {
            self.add_item(at, folder, item);
        }
        at
    }

    fn add_item(&mut self, at: usize, folder: &Path, item: &Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Const(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            _ => return,
        };
        if is_test(attributes) {
            return;
        }
        match item {
            Item::Mod(module) => {
                let (name, folder) = (module.ident.to_string(), folder.join(module.ident.to_string()));
                let child = if let Some((_, items)) = &module.content {
                    let file = self.0[at].file.clone();
                    self.add(Some(at), file, &folder, items)
                } else {
                    let file = file_of(module, folder.parent().expect("a folder above"));
                    let parsed = parse(&file);
                    self.add(Some(at), file, &folder, &parsed.items)
                };
                self.0[at].children.insert(name, child);
                return;
            }
            Item::Use(ItemUse { tree, .. }) => {
                self.add_use(at, Vec::new(), tree);
                return;
            }
            Item::Struct(item) => self.define(at, &item.ident),
            Item::Enum(item) => self.define(at, &item.ident),
            Item::Trait(item) => self.define(at, &item.ident),
            Item::Type(item) => self.define(at, &item.ident),
            Item::Fn(item) => self.define(at, &item.sig.ident),
            Item::Const(item) => self.define(at, &item.ident),
            Item::Static(item) => self.define(at, &item.ident),
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.define(at, name);
                }
            }
            _ => {}
        }
        let mut paths = Paths(BTreeSet::new());
        paths.visit_item(item);
        self.0[at].paths.append(&mut paths.0);
    }

    fn define(&mut self, at: usize, name: &Ident) {
        self.0[at].items.insert(name.to_string());
    }

    fn add_use(&mut self, at: usize, mut path: Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.add_use(at, path, &tree.tree);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_use(at, path.clone(), tree)),
            UseTree::Glob(_) => self.0[at].globs.push(path),
            UseTree::Name(name) => {
                // `self` in a group names what stands before it.
                if name.ident != "self" {
                    path.push(name.ident.to_string());
                }
                let name = path.last().expect("a name").clone();
                self.0[at].names.insert(name, path);
            }
            UseTree::Rename(renamed) => {
                if renamed.ident != "self" {
                    path.push(renamed.ident.to_string());
                }
                self.0[at].names.insert(renamed.rename.to_string(), path);
            }
        }
    }

    /// The module in whose file the thing is defined that a path names in this module.
    fn resolve(&self, at: usize, path: &[String], depth: usize) -> Option<usize> {
        let Some((first, rest)) = path.split_first() else { return Some(at) };
        if depth > 20 {
            return None;
        }
        let module = &self.0[at];
        match first.as_str() {
            "crate" => return self.resolve(0, rest, depth + 1),
            "self" => return self.resolve(at, rest, depth + 1),
            "super" => return self.resolve(module.parent?, rest, depth + 1),
            _ => {}
        }
        if let Some(child) = module.children.get(first) {
            return self.resolve(*child, rest, depth + 1);
        }
        if module.items.contains(first) {
            return Some(at);
        }
        if let Some(path) = module.names.get(first).filter(|path| path.first() != Some(first)) {
            let path: Vec<_> = path.iter().chain(rest).cloned().collect();
            return self.resolve(at, &path, depth + 1);
        }
        module.globs.iter().find_map(|glob| {
            let of = self.resolve(at, glob, depth + 1).filter(|of| *of != at)?;
            self.resolve(of, path, depth + 1)
        })
    }

    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (at, module) in self.0.iter().enumerate() {
            for path in module.names.values().chain(&module.globs).chain(&module.paths) {
                let Some(to) = self.resolve(at, path, 0) else { continue };
                if self.0[to].file != module.file {
                    let arrow = (module.file.clone(), self.0[to].file.clone());
                    imports.entry(arrow).or_default().insert(path.join("::"));
                }
            }
        }
        imports
    }
}

/// Collects the paths of an item, without those of its tests.
struct Paths(BTreeSet<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 && path.leading_colon.is_none() {
            self.0.insert(segments);
        }
        visit::visit_path(self, path);
    }

    /// The tokens of a macro are no syntax yet: all that look like a path count.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_paths(call.tokens.clone());
        visit::visit_macro(self, call);
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {} // a path that imports nothing

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

impl Paths {
    /// Adds words that are joined by `::`.
    fn add_paths(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        // The end of the tokens ends a path, too.
        for token in tokens.into_iter().map(Some).chain([None]) {
            match token {
                Some(TokenTree::Ident(word)) if colons == 2 && !path.is_empty() => path.push(word.to_string()),
                Some(TokenTree::Punct(punct)) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                other => {
                    if path.len() > 1 {
                        self.0.insert(std::mem::take(&mut path));
                    }
                    path = match other {
                        Some(TokenTree::Ident(word)) if colons != 2 => vec![word.to_string()],
                        Some(TokenTree::Group(group)) => {
                            self.add_paths(group.stream());
                            Vec::new()
                        }
                        _ => Vec::new(),
                    };
                }
            }
            colons = 0;
        }
    }
}

/// The file of a module without a body.
fn file_of(module: &syn::ItemMod, folder: &Path) -> PathBuf {
    let given = module.attrs.iter().find_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(value) if value.path.is_ident("path") => match &value.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
            _ => None,
        },
        _ => None,
    });
    if let Some(given) = given {
        return folder.join(given);
    }
    let name = module.ident.to_string();
    let beside = folder.join(&name).with_extension("rs");
    if beside.exists() { beside } else { folder.join(name).join("mod.rs") }
}

fn parse(file: &Path) -> syn::File {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The files of each circle.
fn circles(imports: &Imports) -> Vec<BTreeSet<&PathBuf>> {
    let files: BTreeSet<&PathBuf> = imports.keys().flat_map(|(from, to)| [from, to]).collect();
    let reachable = |start: &PathBuf| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![start.clone()]);
        while let Some(file) = next.pop() {
            let to = imports.keys().filter(|(from, _)| *from == file).map(|(_, to)| to.clone());
            next.extend(to.filter(|to| seen.insert(to.clone())).collect::<Vec<_>>());
        }
        seen
    };
    let from: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = files.iter().map(|file| (*file, reachable(file))).collect();
    let mut found: Vec<BTreeSet<&PathBuf>> = Vec::new();
    for file in files.iter().filter(|file| from[*file].contains(**file)) {
        if !found.iter().any(|circle| circle.contains(file)) {
            let is_in = |other: &&PathBuf| from[*file].contains(*other) && from[*other].contains(*file);
            found.push(files.iter().copied().filter(is_in).collect());
        }
    }
    found
}

fn short(file: &Path) -> String {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    file.strip_prefix(workspace).unwrap_or(file).display().to_string()
}

/// The crates whose source is looked at.
const CRATES: [&str; 2] = ["ratelimit-runtime", "ratelimit-macros"];

/// The floors of the runtime, from the lowest: a module imports only from its own floor and those below.
const FLOORS: [&[&str]; 7] = [
    &["clock", "counter", "decision", "duration", "error", "key", "policy", "rule", "sync"],
    &["backend", "background", "deadline", "failures", "health", "observe", "store"],
    &["algorithm", "config"],
    &["memory", "redis"],
    &["guard"],
    &["engine"],
    &[
        "builder",
        "client",
        "conformance",
        "guide",
        "lib",
        "limiter",
        "macro_support",
        "process",
        "reservation",
        "stream",
        "web",
    ],
];

/// Lines of code that a file may have: no blank lines, no comments, no tests.
const MOST_LINES: usize = 450;

/// Columns that a line of a comment may have.
const MOST_COLUMNS: usize = 120;

/// Lines of code outside of its folder that may name one algorithm. Those of a further algorithm are
/// rows of tables, see CONTRIBUTING.md.
const MOST_NAMINGS: usize = 12;

/// The floor of a file of the runtime.
fn floor_of(file: &Path) -> usize {
    let within = file.strip_prefix(source("ratelimit-runtime")).expect("a file of the runtime");
    let module = within.iter().next().expect("a name").to_str().expect("a name in ASCII");
    let module = module.strip_suffix(".rs").unwrap_or(module);
    let floor = FLOORS.iter().position(|floor| floor.contains(&module));
    floor.unwrap_or_else(|| panic!("give the module `{module}` a floor in tests/structure.rs"))
}

/// The source files of a crate: Rust and Lua.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            found.append(&mut files(&entry));
        } else if entry.extension().is_some_and(|extension| extension == "rs" || extension == "lua") {
            found.push(entry);
        }
    }
    found
}

fn all_files() -> impl Iterator<Item = (PathBuf, String)> {
    let files = CRATES.iter().flat_map(|name| files(&source(name)));
    files.map(|file| {
        let text = fs::read_to_string(&file).expect("a text");
        (file, text)
    })
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("//") || line.starts_with("--")
}

/// The lines of code of a file with their numbers: no blank lines, no comments, no tests at its end.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_test = |at: usize, line: &str| {
        let opens = text.lines().nth(at + 1).is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        opens && line.starts_with("#[cfg(") && line.contains("test")
    };
    let end = text.lines().enumerate().find(|(at, line)| is_test(*at, line)).map_or(usize::MAX, |(at, _)| at);
    let code = text.lines().enumerate().take(end);
    code.filter(|(_, line)| !line.trim().is_empty() && !is_comment(line)).map(|(at, line)| (at + 1, line))
}

/// The words of a line, without those of a comment at its end.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let code = line.split(" // ").next().unwrap_or_default();
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The variants of the enum of the algorithms.
fn algorithms() -> Vec<String> {
    let file = parse(&source("ratelimit-runtime").join("rule/algorithm.rs"));
    let variants = file.items.iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "Algorithm" => Some(&item.variants),
        _ => None,
    });
    variants.expect("the enum of the algorithms").iter().map(|variant| variant.ident.to_string()).collect()
}

/// `SlidingLog` as `sliding_log`.
fn snake_case(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

/// Types by name that a file defines, without its tests and those within functions.
fn types(items: &[Item]) -> Vec<String> {
    let mut found = Vec::new();
    for item in items {
        let (attributes, name) = match item {
            Item::Struct(item) => (&item.attrs, &item.ident),
            Item::Enum(item) => (&item.attrs, &item.ident),
            Item::Trait(item) => (&item.attrs, &item.ident),
            Item::Type(item) => (&item.attrs, &item.ident),
            Item::Mod(module) if !is_test(&module.attrs) => {
                found.extend(module.content.iter().flat_map(|(_, items)| types(items)));
                continue;
            }
            _ => continue,
        };
        // A feature may have a type of the same name where another one has not.
        let is_alternative = attributes.iter().any(|attribute| attribute.path().is_ident("cfg"));
        if !is_test(attributes) && !is_alternative {
            found.push(name.to_string());
        }
    }
    found
}

/// The imports that match, in words.
fn arrows(imports: &Imports, is_so: impl Fn(&Path, &Path) -> bool) -> String {
    let mut words = String::new();
    for ((from, to), names) in imports.iter().filter(|((from, to), _)| is_so(from, to)) {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let _ = writeln!(words, "{} -> {}: {}", short(from), short(to), names.join(", "));
    }
    words
}

#[test]
fn imports_run_down_and_close_no_circle() {
    for name in CRATES {
        let imports = Crate::read(&source(name)).imports();
        let runs_up = |from: &Path, to: &Path| name == "ratelimit-runtime" && floor_of(from) < floor_of(to);
        let found = arrows(&imports, runs_up);
        assert!(found.is_empty(), "imports of {name} that run up:\n{found}");
        let circles = circles(&imports);
        let in_circle = |from: &Path, to: &Path| {
            circles.iter().any(|circle| [from, to].iter().all(|file| circle.iter().any(|other| other == file)))
        };
        let found = arrows(&imports, in_circle);
        assert!(found.is_empty(), "imports of {name} that close a circle:\n{found}");
    }
}

#[test]
fn no_file_is_long() {
    let mut words = String::new();
    for (file, text) in all_files() {
        let lines = code(&text).count();
        if lines > MOST_LINES {
            let _ = writeln!(words, "{}: {lines}", short(&file));
        }
    }
    assert!(words.is_empty(), "files of more than {MOST_LINES} lines of code:\n{words}");
}

/// A further algorithm is a folder, and a row in each of a few tables.
#[test]
fn few_lines_name_one_algorithm() {
    let folders = source("ratelimit-runtime").join("algorithm");
    let is_in_folder =
        |file: &Path| file.parent().is_some_and(|folder| folder != folders && folder.starts_with(&folders));
    let files: BTreeSet<PathBuf> =
        CRATES.iter().flat_map(|name| Crate::read(&source(name)).0).map(|module| module.file).collect();
    let texts: Vec<_> = files
        .iter()
        .filter(|file| !is_in_folder(file))
        .map(|file| (file, fs::read_to_string(file).expect("a text")))
        .collect();
    let algorithms = algorithms();
    assert!(algorithms.len() > 5, "{algorithms:?}");
    let mut found = String::new();
    for name in algorithms {
        let snake = snake_case(&name);
        let mut lines = Vec::new();
        for (file, text) in &texts {
            // A single word such as `concurrent` is also English.
            let names = |word: &str| word == name || snake.contains('_') && word == snake;
            let naming = code(text).filter(|(_, line)| words(line).any(names));
            lines.extend(naming.map(|(number, line)| format!("  {}:{number}: {}", short(file), line.trim())));
        }
        if lines.len() > MOST_NAMINGS {
            let _ = writeln!(found, "{name}: {}\n{}", lines.len(), lines.join("\n"));
        }
    }
    assert!(found.is_empty(), "algorithms that more than {MOST_NAMINGS} lines name:\n{found}");
}

#[test]
fn no_comment_is_wide() {
    let mut words = String::new();
    for (file, text) in all_files() {
        for (line, number) in text.lines().zip(1..) {
            if is_comment(line) && line.chars().count() > MOST_COLUMNS {
                let _ = writeln!(words, "{}:{number}", short(&file));
            }
        }
    }
    assert!(words.is_empty(), "comments of more than {MOST_COLUMNS} columns:\n{words}");
}

#[test]
fn no_type_name_is_used_twice() {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in CRATES {
        for module in Crate::read(&source(name)).0.iter().map(|module| &module.file).collect::<BTreeSet<_>>() {
            for name in types(&parse(module).items) {
                by_name.entry(name).or_default().push(short(module));
            }
        }
    }
    let mut words = String::new();
    for (name, files) in by_name.iter().filter(|(_, files)| files.len() > 1) {
        let _ = writeln!(words, "{name}: {}", files.join(", "));
    }
    assert!(words.is_empty(), "type names used twice:\n{words}");
}

/// Each row of the threat model names tests in its last column.
#[test]
fn the_tests_in_the_threat_model_exist() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let folders = ["tests", "ratelimit-runtime/src", "ratelimit-macros/src"];
    let sources = folders.iter().flat_map(|folder| files(&workspace.join(folder)));
    let sources: String = sources.map(|file| fs::read_to_string(file).expect("a text")).collect();
    let threats = fs::read_to_string(workspace.join("SECURITY.md")).expect("a text");
    let rows = threats.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| tests |"));
    let mut missing = String::new();
    for row in rows {
        let tests: Vec<_> =
            row.trim_end_matches([' ', '|']).rsplit('|').take(1).flat_map(|cell| cell.split('`')).collect();
        let names = tests.iter().skip(1).step_by(2);
        let unknown: Vec<_> = names.filter(|name| !sources.contains(&format!("fn {name}("))).collect();
        if tests.len() < 3 || !unknown.is_empty() {
            let _ = writeln!(missing, "{row}\n  {unknown:?}");
        }
    }
    assert!(missing.is_empty(), "rows without tests, or with tests that do not exist:\n{missing}");
}

/// The text of the first string behind each of these beginnings, up to the end of its line.
fn strings_after<'a>(text: &'a str, beginnings: &[&str]) -> Vec<&'a str> {
    let behind = beginnings.iter().flat_map(|beginning| text.split(beginning).skip(1));
    behind.filter_map(|rest| rest.split('"').nth(1)?.split("\\\n").next()).map(str::trim_end).collect()
}

/// The page for operators has a row for each log event, each span and each metric.
#[test]
fn the_guide_lists_each_log_event_and_metric() {
    let runtime = source("ratelimit-runtime");
    let page = fs::read_to_string(runtime.join("guide/operations.md")).expect("a text");
    let table = |heading: &str| page.split(heading).nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let (mut events, mut missing) = (0, String::new());
    for file in files(&runtime) {
        let text = fs::read_to_string(&file).expect("a text");
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (heading, logged) in [
            ("\n| `ERROR` |", &["tracing::error!("][..]),
            ("\n| `WARN` |", &["tracing::warn!("]),
            ("\n| `INFO` |", &["tracing::info!("]),
            ("\n| `DEBUG` |", &["tracing::debug!(", "debug_span!("]),
        ] {
            for message in strings_after(code, logged) {
                events += 1;
                // A row may leave out what follows the first part of a message.
                let begin = message.split([';', ':', ',']).next().unwrap_or_default();
                if !table(heading).contains(&format!("`{begin}")) {
                    let _ = writeln!(missing, "{}: {message}", short(&file));
                }
            }
        }
        for metric in code.split('"').filter(|text| text.starts_with("ratelimit_") && !text.contains([' ', ':'])) {
            if !page.contains(&format!("| `{metric}`")) {
                let _ = writeln!(missing, "{}: {metric}", short(&file));
            }
        }
    }
    assert!(events > 25, "only {events} log events were found");
    assert!(missing.is_empty(), "log events and metrics that guide/operations.md does not list:\n{missing}");
}

/// All texts of the workspace by their paths in it, without what a build makes.
fn texts(folder: &Path, root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let is_named = |names: &[&str]| names.iter().any(|name| entry.ends_with(name));
        if entry.is_dir() {
            if !is_named(&[".git", "target"]) && !entry.join("CACHEDIR.TAG").exists() {
                found.append(&mut texts(&entry, root));
            }
        } else if let Ok(text) = fs::read_to_string(&entry) {
            let path = entry.strip_prefix(root).expect("a path in the workspace");
            found.push((path.to_string_lossy().into_owned(), text));
        }
    }
    found
}

/// The pages for maintainers name files and items in backticks. A name right behind a file is in that file.
#[test]
fn the_files_and_names_in_the_pages_for_maintainers_exist() {
    const PAGES: [&str; 2] = ["CONTRIBUTING.md", "docs/where_to_look.md"];
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let (pages, sources): (Vec<_>, Vec<_>) =
        texts(workspace, workspace).into_iter().partition(|(file, _)| PAGES.contains(&file.as_str()));
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words_of = |text| str::split(text, |c| !is_word(c)).collect::<BTreeSet<_>>();
    let words: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| words_of(text)).collect();
    let (mut checked, mut missing) = (0, String::new());
    for (page, text) in &pages {
        let parts: Vec<_> = text.split('`').collect();
        // Every second part is code, and what is right behind it follows two parts later.
        for (at, code) in parts.iter().enumerate().skip(1).step_by(2) {
            let named = |code: &str| code.split("::").all(|word| !word.is_empty() && word.chars().all(is_word));
            let is_path = code.chars().all(|c| is_word(c) || matches!(c, '/' | '.' | '-'));
            let is_file = [".rs", ".lua", ".md", ".toml", ".html", "/"].iter().any(|end| code.ends_with(end));
            if named(code) {
                checked += 1;
                if !code.split("::").all(|word| words.contains(word)) {
                    let _ = writeln!(missing, "{page}: no {code} in the workspace");
                }
            } else if is_path && is_file {
                checked += 1;
                let path = match code.strip_prefix("macros/") {
                    Some(rest) => format!("/ratelimit-macros/src/{rest}"),
                    None => format!("/{code}"),
                };
                let is_meant = |file: &str| {
                    let file = format!("/{file}");
                    if path.ends_with('/') { file.contains(&path) } else { file.ends_with(&path) }
                };
                let meant: Vec<_> = sources.iter().chain(&pages).filter(|(file, _)| is_meant(file)).collect();
                if meant.is_empty() {
                    let _ = writeln!(missing, "{page}: no file {code}");
                }
                let behind = parts.get(at + 2).filter(|name| parts[at + 1].trim().is_empty() && named(name));
                if let Some(name) = behind.and_then(|name| name.rsplit("::").next())
                    && !meant.iter().any(|(_, text)| words_of(text).contains(name))
                {
                    let _ = writeln!(missing, "{page}: no {name} in {code}");
                }
            }
        }
    }
    assert!(checked > 2000, "only {checked} files and names were found");
    assert!(missing.is_empty(), "{missing}");
}
