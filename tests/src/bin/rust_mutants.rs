//! Mutants of the Rust code that counts. `cargo mutants` lists them; this builds all of them into one
//! program, where a variable chooses one, so that none needs a build of its own.
//! `tests/rust_mutants` makes what this needs and runs it.
//!
//! Arguments: the list of mutants (JSON), a copy of the sources, which is changed, and the options of
//! `ratelimit_harness::mutants`.
//!
//! A mutant that no test notices is a survivor. `tests/rust_mutants.txt` lists those that are known,
//! each with its reason. Another one is an error.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ratelimit_harness::mutants::{Options, TestProgram, try_all};
use serde_json::Value;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

const KNOWN: &str = include_str!("../../rust_mutants.txt");
const SOURCES: &str = "ratelimit-runtime/src/";
/// Chooses a mutant by its number.
const VARIABLE: &str = "RATELIMIT_RUST_MUTANT";
/// Names a file for the numbers of all mutants whose code was run.
const REACHED: &str = "RATELIMIT_RUST_MUTANTS_REACHED";
/// Is appended to the root of the crate. It allocates at the first call only: tests count allocations.
const IS_MUTANT: &str = r#"
pub(crate) fn is_mutant(number: usize) -> bool {
    use std::{env::var_os, fs::File, io::Write, sync::{LazyLock, atomic::{AtomicBool, Ordering::Relaxed}}};
    static CHOSEN: LazyLock<Option<usize>> =
        LazyLock::new(|| var_os("RATELIMIT_RUST_MUTANT")?.to_str()?.parse().ok());
    static REACHED: LazyLock<Option<File>> = LazyLock::new(|| {
        File::options().append(true).open(var_os("RATELIMIT_RUST_MUTANTS_REACHED")?).ok()
    });
    static IS_REACHED: [AtomicBool; 10_000] = [const { AtomicBool::new(false) }; 10_000];
    if let Some(file) = &*REACHED
        && !IS_REACHED[number].swap(true, Relaxed)
    {
        (&mut &*file).write_all(&(number as u64).to_le_bytes()).expect("room on the disk");
    }
    *CHOSEN == Some(number)
}
"#;
/// The programs whose tests have to notice a mutant, and the folders where `cargo test` runs them.
const PROGRAMS: [(&str, &str); 3] =
    [("ratelimit_runtime", "ratelimit-runtime"), ("it", "tests"), ("allocations", "tests")];

struct Mutant {
    /// From 0.
    number: u64,
    /// Below the sources.
    file: PathBuf,
    /// With `#2` at its end if it is the second one of the same text in its file, from the start.
    name: String,
    genre: String,
    /// The replaced text, in bytes.
    replaced: Range<usize>,
    replacement: String,
}

impl Mutant {
    fn parse(number: u64, listed: &Value, texts: &mut HashMap<PathBuf, String>, tree: &Path) -> Self {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let path = text(&listed["file"]);
        let file = PathBuf::from(path.strip_prefix(SOURCES).expect("a source of the runtime"));
        let source = texts
            .entry(file.clone())
            .or_insert_with(|| fs::read_to_string(tree.join(&path)).expect("a source of the list"));
        // Lines and columns are counted from 1, columns in characters.
        let offset = |place: &Value| {
            let [line, column] =
                ["line", "column"].map(|of| usize::try_from(place[of].as_u64().expect("a number")).unwrap());
            let start: usize = source.split_inclusive('\n').take(line - 1).map(str::len).sum();
            start + source[start..].chars().take(column - 1).map(char::len_utf8).sum::<usize>()
        };
        let replaced = offset(&listed["span"]["start"])..offset(&listed["span"]["end"]);
        // Without the line and the column, which move.
        let name = text(&listed["name"]);
        let change = name.splitn(4, ':').nth(3).expect("a file, a line, a column and a change").trim_start().to_owned();
        Self {
            number,
            name: format!("{}: {change}", file.display()),
            file,
            genre: text(&listed["genre"]),
            replaced,
            replacement: text(&listed["replacement"]),
        }
    }
}

fn number_namesakes(mutants: &mut [Mutant]) {
    let mut namesakes = HashMap::new();
    for mutant in mutants {
        let number = namesakes.entry(mutant.name.clone()).or_insert(0);
        *number += 1;
        if *number > 1 {
            write!(mutant.name, " #{number}").expect("a String");
        }
    }
}

/// A place of the source where mutants can be chosen at run time, by what is to be replaced.
#[derive(Clone)]
enum Site {
    /// The start of a function's body.
    Body,
    /// An operator with two operands.
    Binary {
        left: Range<usize>,
        right: Range<usize>,
    },
    /// An operator before its operand.
    Unary {
        operand: Range<usize>,
    },
    /// The end of an arm's pattern.
    Arm,
    Guard,
}

/// The sites of one file: by the genre and the start of a mutant, the place that changes.
#[derive(Default)]
struct Sites {
    places: HashMap<(&'static str, usize), (Range<usize>, Site)>,
    /// Functions that exist without a feature only. All features are on here.
    not_compiled: Vec<Range<usize>>,
}

impl Sites {
    fn of(text: &str) -> Self {
        let mut sites = Self::default();
        sites.visit_file(&syn::parse_file(text).expect("Rust"));
        sites
    }

    fn body(&mut self, attributes: &[syn::Attribute], block: &syn::Block) {
        let is_off = |attribute: &syn::Attribute| {
            let list = attribute.meta.require_list().ok().filter(|list| list.path.is_ident("cfg"));
            list.is_some_and(|list| list.tokens.to_string().starts_with("not (feature"))
        };
        if attributes.iter().any(is_off) {
            self.not_compiled.push(block.span().byte_range());
        }
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            self.places.insert(("FnValue", start), (start..start, Site::Body));
        }
    }
}

impl<'ast> Visit<'ast> for Sites {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.body(&item.attrs, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.body(&item.attrs, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        item.default.iter().for_each(|block| self.body(&item.attrs, block));
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        let [left, right] = [&binary.left, &binary.right].map(|operand| operand.span().byte_range());
        let site = (left.start..right.end, Site::Binary { left, right });
        self.places.insert(("BinaryOperator", binary.op.span().byte_range().start), site);
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        let (whole, operand) = (unary.span().byte_range(), unary.expr.span().byte_range());
        self.places.insert(("UnaryOperator", whole.start), (whole, Site::Unary { operand }));
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        let pattern = arm.pat.span().byte_range();
        self.places.insert(("MatchArm", arm.span().byte_range().start), (pattern.end..pattern.end, Site::Arm));
        if let syn::Pat::Guard(guarded) = &arm.pat {
            let guard = guarded.guard.span().byte_range();
            self.places.insert(("MatchArmGuard", guard.start), (guard, Site::Guard));
        }
        visit::visit_arm(self, arm);
    }
}

/// A file with its mutants built in.
struct Rendered<'a> {
    text: &'a str,
    /// Outer places before inner ones, insertions first.
    places: Vec<(Range<usize>, Site, Vec<&'a Mutant>)>,
}

impl<'a> Rendered<'a> {
    /// Returns also the mutants that cannot be chosen at run time.
    fn new(text: &'a str, sites: &Sites, mutants: &[&'a Mutant]) -> (Self, Vec<u64>) {
        let (mut places, mut others) = (BTreeMap::new(), Vec::new());
        for mutant in mutants {
            let key = (mutant.genre.as_str(), mutant.replaced.start);
            let Some((place, site)) = sites.places.get(&key) else {
                others.push(mutant.number);
                continue;
            };
            let order = (place.start, !place.is_empty(), Reverse(place.end));
            places.entry(order).or_insert_with(|| (place.clone(), site.clone(), Vec::new())).2.push(*mutant);
        }
        (Self { text, places: places.into_values().collect() }, others)
    }

    fn whole(&self) -> String {
        self.render(0..self.text.len(), 0)
    }

    /// The text of `range` with those mutants whose places come from `first` on.
    fn render(&self, range: Range<usize>, first: usize) -> String {
        let (mut rendered, mut at) = (String::new(), range.start);
        for (index, (place, site, mutants)) in self.places.iter().enumerate().skip(first) {
            if place.start >= at && place.end <= range.end {
                rendered.push_str(&self.text[at..place.start]);
                self.render_site(place, site, mutants, index + 1, &mut rendered);
                at = place.end;
            }
        }
        rendered.push_str(&self.text[at..range.end]);
        rendered
    }

    /// Each mutant is between `/*<number*/` and `/*>*/`, where an error of the compiler finds it.
    fn render_site(&self, place: &Range<usize>, site: &Site, mutants: &[&Mutant], inner: usize, to: &mut String) {
        let operand = |range: &Range<usize>| format!("({})", self.render(range.clone(), inner));
        let choice = |mutant: &Mutant, before: &str, then: &str| {
            let number = mutant.number;
            format!("/*<{number}*/ {before} crate::is_mutant({number}) {then} /*>*/")
        };
        // `(if mutant 1 { .. } else if mutant 2 { .. } else { unchanged })`
        let choose = |changed: &dyn Fn(&Mutant) -> String, unchanged: String| {
            let branches: String = mutants
                .iter()
                .map(|mutant| choice(mutant, "if", &format!("{{ {} }}", changed(mutant))) + " else ")
                .collect();
            // What is no expression of its own fails here, for example a part of `if let .. && ..`.
            format!("({branches} /*<{}*/ {{ {unchanged} }} /*>*/)", mutants[0].number)
        };
        let text = match site {
            Site::Body => mutants
                .iter()
                .map(|mutant| choice(mutant, "if", &format!("{{ return {}; }} ", mutant.replacement)))
                .collect(),
            Site::Binary { left, right } => {
                let operator = self.text[mutants[0].replaced.clone()].to_owned();
                let whole = |operator: &str| format!("{} {operator} {}", operand(left), operand(right));
                choose(&|mutant| whole(&mutant.replacement), whole(&operator))
            }
            Site::Unary { operand: range } => {
                let operator = &self.text[mutants[0].replaced.clone()];
                choose(&|_| operand(range), format!("{operator}{}", operand(range)))
            }
            Site::Arm => choice(mutants[0], " if !", ""),
            Site::Guard => choose(&|mutant| mutant.replacement.clone(), self.render(place.clone(), inner)),
        };
        write!(to, "{text}").expect("a String");
    }
}

/// The mutant whose text contains the byte, the innermost one.
fn mutant_at(rendered: &str, byte: usize) -> Option<u64> {
    let mut open: Vec<u64> = Vec::new();
    let mut at = 0;
    while let Some(mark) = rendered[at..byte].find("/*<").into_iter().chain(rendered[at..byte].find("/*>*/")).min() {
        at += mark;
        if rendered[at..].starts_with("/*<") {
            let number = rendered[at + 3..].split('*').next().expect("a number");
            open.push(number.parse().expect("a number"));
        } else {
            open.pop();
        }
        at += 3;
    }
    open.pop()
}

fn nearest_mutant(rendered: &str, byte: usize) -> Option<u64> {
    let nearest = rendered.match_indices("/*<").min_by_key(|(at, _)| at.abs_diff(byte))?;
    mutant_at(rendered, nearest.0 + "/*<".len())
}

/// Both have their dependencies compiled once, as the features are the same.
const PACKAGES: &[&str] = &["-p", "ratelimit-runtime", "-p", "ratelimit-tests", "--all-features", "--lib"];

/// Of the program that serves many mutants: it takes longer to run than to optimise.
const SERVES_MANY: &[&str] = &["--config", "profile.dev.package.ratelimit-runtime.opt-level=1"];

/// The files and places of the errors when the runtime is compiled.
fn compile_errors(tree: &Path) -> Vec<(PathBuf, usize, String)> {
    let output = Command::new("cargo")
        .args(["check", "-q", "--message-format=json"])
        .args(PACKAGES)
        .current_dir(tree)
        .stderr(Stdio::null())
        .output()
        .expect("cargo");
    let mut errors = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message = serde_json::from_str::<Value>(line).map(|line| line["message"].clone()).unwrap_or_default();
        let spans = message["spans"].as_array().into_iter().flatten();
        if let Some(span) = spans.into_iter().find(|span| span["is_primary"] == true)
            && message["level"] == "error"
        {
            let byte = usize::try_from(span["byte_start"].as_u64().expect("a place")).expect("a small file");
            let path = span["file_name"].as_str().expect("a file").trim_start_matches(SOURCES);
            errors.push((PathBuf::from(path), byte, message["rendered"].to_string()));
        }
    }
    assert!(output.status.success() || !errors.is_empty(), "cargo check fails without an error at a place");
    errors
}

/// The programs of [`PROGRAMS`], in the same order. `None`: not built.
struct Programs {
    paths: [Option<PathBuf>; PROGRAMS.len()],
    folders: [PathBuf; PROGRAMS.len()],
}

/// The arguments that build the programs of [`PROGRAMS`] that are no part of the library.
const OTHERS: [&str; 4] = ["--test", "it", "--test", "allocations"];

impl Programs {
    fn build(tree: &Path, options: &[&str]) -> Option<Self> {
        let output = Command::new("cargo")
            .args(["test", "--no-run", "-q", "--message-format=json-render-diagnostics"])
            .args(PACKAGES)
            .args(options)
            .current_dir(tree)
            .stderr(Stdio::inherit())
            .output()
            .expect("cargo");
        let program = |line: &str| {
            let message: Value = serde_json::from_str(line).ok()?;
            let name = message["target"]["name"].as_str()?;
            Some((name.to_owned(), PathBuf::from(message["executable"].as_str()?)))
        };
        let programs: HashMap<_, _> = String::from_utf8_lossy(&output.stdout).lines().filter_map(program).collect();
        output.status.success().then(|| Self {
            paths: PROGRAMS.map(|(name, _)| programs.get(name).cloned()),
            folders: PROGRAMS.map(|(_, folder)| tree.join(folder)),
        })
    }

    /// All tests, each after it has passed without a mutant.
    fn tests(&self, jobs: usize) -> Vec<Test> {
        let list = |program| {
            let listed = Command::new(self.path(program)).args(["--list", "--format", "terse"]).output();
            let listed = listed.expect("a list");
            let names = String::from_utf8(listed.stdout).expect("names");
            names.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect::<Vec<_>>()
        };
        let names: Vec<_> = (0..PROGRAMS.len())
            .flat_map(|program| list(program).into_iter().map(move |name| (program, name)))
            .collect();
        let (next, tests) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        thread::scope(|threads| {
            for _ in 0..jobs {
                threads.spawn(|| {
                    while let Some((program, name)) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let test = (0..3).find_map(|_| self.reach(*program, name));
                        let test = test.unwrap_or_else(|| panic!("{name} fails without a mutant"));
                        tests.lock().expect("no panic").push(test);
                    }
                });
            }
        });
        let mut tests = tests.into_inner().expect("no panic");
        tests.sort_by_key(|test| test.took);
        tests
    }

    fn path(&self, program: usize) -> &Path {
        self.paths[program].as_deref().expect("the program was built")
    }

    /// Runs one test without a mutant. `None` if it fails.
    fn reach(&self, program: usize, name: &str) -> Option<Test> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let begun = Instant::now();
        let output = Command::new(self.path(program))
            .args([name, "--exact"])
            .current_dir(&self.folders[program])
            .env(REACHED, file.path())
            .output()
            .expect("the test program");
        let took = begun.elapsed();
        let numbers = fs::read(file.path()).expect("the file");
        let (numbers, _) = numbers.as_chunks();
        let reached = numbers.iter().map(|number| u64::from_le_bytes(*number)).collect();
        output.status.success().then(|| Test { program, name: name.to_owned(), took, reached })
    }

    /// Runs the tests, the quickest first, until one fails.
    fn killer<'a>(&self, tests: impl IntoIterator<Item = &'a Test>, mutant: &str) -> Option<String> {
        let mut tests = tests.into_iter().peekable();
        let mut longest = Duration::from_secs(1);
        while tests.peek().is_some() {
            let (mut names, mut took) = ([const { Vec::new() }; PROGRAMS.len()], Duration::ZERO);
            while took < longest
                && let Some(test) = tests.next()
            {
                names[test.program].push(test.name.as_str());
                took += test.took;
            }
            let failed =
                names.iter().enumerate().filter(|(_, names)| !names.is_empty()).find_map(|(program, names)| {
                    let folder = &self.folders[program];
                    TestProgram { path: self.path(program), folder, variable: VARIABLE }
                        .killer(&[names, &["--exact"][..]].concat(), OsStr::new(mutant))
                });
            if failed.is_some() {
                return failed;
            }
            longest *= 4;
        }
        None
    }
}

/// Tests that take longer find no more mutants: one that they alone would notice is a survivor.
const LONGEST: Duration = Duration::from_secs(10);

struct Test {
    /// Of [`PROGRAMS`].
    program: usize,
    name: String,
    took: Duration,
    /// The mutants whose code it runs.
    reached: BTreeSet<u64>,
}

/// A file that gets its text back when this is dropped.
struct Restored<'a>(PathBuf, &'a str);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        fs::write(&self.0, self.1).expect("a file");
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let [list, tree, ..] = &args[..] else {
        eprintln!("usage: rust_mutants LIST TREE [options]");
        return ExitCode::FAILURE;
    };
    let (options, tree) = (Options::parse(&args), Path::new(tree));
    let list: Value = serde_json::from_slice(&fs::read(list).expect("the list")).expect("JSON");
    let mut sources = HashMap::new();
    let parsed = (0..).zip(list.as_array().expect("a list"));
    let mut all: Vec<_> = parsed.map(|(number, listed)| Mutant::parse(number, listed, &mut sources, tree)).collect();
    number_namesakes(&mut all);
    let sites: HashMap<_, _> = sources.iter().map(|(file, text)| (file.clone(), Sites::of(text))).collect();
    let is_compiled = |mutant: &Mutant| {
        !sites[&mutant.file].not_compiled.iter().any(|function| function.contains(&mutant.replaced.start))
    };
    let all: Vec<_> = all.into_iter().filter(is_compiled).collect();
    let total = all.len();
    let chosen = options.choose(all, |mutant| &mutant.file, |mutant| mutant.name.clone());
    println!("{} of {total} mutants", chosen.len());
    if options.list {
        for mutant in &chosen {
            println!("{}", mutant.name);
        }
        return ExitCode::SUCCESS;
    }
    let source = |file: &Path| tree.join(SOURCES).join(file);
    let root = source(Path::new("lib.rs"));
    let root_text = fs::read_to_string(&root).expect("the root of the crate");
    fs::write(&root, format!("{root_text}{IS_MUTANT}")).expect("a file");

    // Mutants that do not compile beside the others are built alone.
    let mut alone = BTreeSet::new();
    loop {
        let mut rendered = HashMap::new();
        for (file, text) in &sources {
            let of_file = |mutant: &&Mutant| mutant.file == *file && !alone.contains(&mutant.number);
            let (with_mutants, others) =
                Rendered::new(text, &sites[file], &chosen.iter().filter(of_file).collect::<Vec<_>>());
            alone.extend(others);
            let text = with_mutants.whole();
            fs::write(source(file), &text).expect("a file");
            rendered.insert(file.clone(), text);
        }
        let errors = compile_errors(tree);
        if errors.is_empty() {
            break;
        }
        // An error elsewhere may follow from one in a mutant, or be in the function or the match around it.
        let places = || errors.iter().filter_map(|(file, byte, _)| Some((rendered.get(file)?, *byte)));
        let mut mutants: Vec<_> = places().filter_map(|(text, byte)| mutant_at(text, byte)).collect();
        if mutants.is_empty() {
            mutants.extend(places().filter_map(|(text, byte)| nearest_mutant(text, byte)));
        }
        assert!(!mutants.is_empty(), "errors outside of mutants: {errors:?}");
        alone.extend(mutants);
        println!("{} mutants have to be built alone", alone.len());
    }
    let programs = Programs::build(tree, &[SERVES_MANY, &OTHERS].concat()).expect("the programs compile");
    let begun = Instant::now();
    let mut tests = programs.tests(2 * options.jobs.get());
    println!("{} tests pass without a mutant, in {:.0} s", tests.len(), begun.elapsed().as_secs_f64());
    tests.retain(|test| test.took < LONGEST);
    println!("{} of them take less than {} s and try the mutants", tests.len(), LONGEST.as_secs());
    let (together, alone): (Vec<_>, Vec<_>) = chosen.iter().partition(|mutant| !alone.contains(&mutant.number));
    let name = |mutant: &&Mutant| mutant.name.clone();
    let first = try_all(&together, options.jobs, KNOWN, name, |_, mutant| {
        let tests = tests.iter().filter(|test| test.reached.contains(&mutant.number));
        programs.killer(tests, &mutant.number.to_string())
    });

    fs::write(&root, root_text).expect("a file");
    for (file, text) in &sources {
        fs::write(source(file), text).expect("a file");
    }
    // In place of the unchanged file.
    let built_in = |mutant: &Mutant| {
        let Mutant { file, replaced, replacement, .. } = mutant;
        let text = &sources[file];
        let changed = format!("{}{replacement}{}", &text[..replaced.start], &text[replaced.end..]);
        fs::write(source(file), changed).expect("a file");
        Restored(source(file), text)
    };
    let total = alone.len();
    let alone: Vec<_> = alone
        .into_iter()
        .filter(|mutant| {
            let _restored = built_in(mutant);
            compile_errors(tree).is_empty()
        })
        .collect();
    println!("\n{} mutants do not compile. Built alone:", total - alone.len());
    let second = try_all(&alone, std::num::NonZeroUsize::MIN, KNOWN, name, |_, mutant| {
        let _restored = built_in(mutant);
        // Those that run other mutants of the file, or all. The unit tests first: the other programs take longer to
        // build.
        let of_file: BTreeSet<_> =
            together.iter().filter(|other| other.file == mutant.file).map(|other| other.number).collect();
        let near = |test: &&Test| of_file.is_empty() || !test.reached.is_disjoint(&of_file);
        let killer_of = |options: &[&str], is_unit: bool| match Programs::build(tree, options) {
            Some(programs) => {
                programs.killer(tests.iter().filter(near).filter(|test| (test.program == 0) == is_unit), "")
            }
            None => Some("the compiler of the tests".to_owned()),
        };
        killer_of(&[], true).or_else(|| killer_of(&OTHERS, false))
    });
    if first == ExitCode::SUCCESS { second } else { first }
}
