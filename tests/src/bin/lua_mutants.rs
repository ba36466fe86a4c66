//! Mutants of the Lua scripts: each comparison, number, sign and branch is changed, one at a time,
//! and the tests have to fail. `tests/lua_mutants` builds what this needs and runs it.
//!
//! Arguments: the test program `it`, built with `--cfg lua_mutants`, and the options of
//! `ratelimit_harness::mutants`.
//!
//! A mutant that no test notices is a survivor. `tests/lua_mutants.txt` lists those that are known,
//! each with its reason. Another one is an error.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use ratelimit_harness::mutants::{Options, TestProgram, try_all};

/// Tests that run until one fails. The first find most mutants, within seconds.
const STAGES: &[&[&str]] = &[
    &["core::conformance::the_redis_store_conforms"],
    &["core::holds::refunded", "core::state", "core::time", "redis::batching", "redis::hold_cost", "redis::settled"],
    &["core::algorithms", "core::bans", "core::bounds", "core::cost", "core::debt", "core::exact", "core::refund"],
    &["core::holds", "core::model", "core::shadow", "harness::controlled_clock", "redis::"],
];
/// Tests of a stage that change nothing here, and take long.
const SKIPPED: &[&str] = &[
    "--skip",
    "redis::cluster",
    "--skip",
    "redis::sentinel",
    "--skip",
    "redis::tls",
    "--skip",
    "redis::server",
    "--skip",
    "redis::connection",
    "--skip",
    "redis::prefetch",
    "--skip",
    "redis::runtimes",
];
const KNOWN: &str = include_str!("../../lua_mutants.txt");

/// One change of one file.
struct Mutant {
    file: PathBuf,
    start: usize,
    end: usize,
    replacement: String,
}

impl Mutant {
    /// The changed line, before and after, as the list of known survivors has it.
    fn describe(&self, text: &str) -> String {
        let line_start = text[..self.start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[self.end..].find('\n').map_or(text.len(), |at| self.end + at);
        let mutated = format!("{}{}{}", &text[line_start..self.start], self.replacement, &text[self.end..line_end]);
        let line = text[..self.start].matches('\n').count() + 1;
        let place = format!("{}:{line}", self.file.display());
        format!("{place}: `{}` -> `{}`", text[line_start..line_end].trim(), mutated.trim())
    }

    fn apply(&self, text: &str) -> String {
        format!("{}{}{}", &text[..self.start], self.replacement, &text[self.end..])
    }
}

/// A token of Lua, with its place in the text. Comments and strings are left out.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    start: usize,
}

impl Token<'_> {
    fn end(self) -> usize {
        self.start + self.text.len()
    }

    /// A value ends here, so a `-` after it subtracts.
    fn ends_value(self) -> bool {
        let is_word = self.text.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_operator = ["and", "or", "not", "return", "then", "else", "do", "if", "elseif", "while", "until"];
        matches!(self.text, ")" | "]" | "}" | "'") || is_word && !is_operator.contains(&self.text)
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let word = |rest: &str, is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let length = if rest.starts_with("--") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        } else if c == '\'' {
            // A string counts as one value.
            let end = rest[1..].find('\'').map_or(rest.len(), |end| end + 2);
            tokens.push(Token { text: &rest[end - 1..end], start: at + end - 1 });
            at += end;
            continue;
        } else if c == '@' || c.is_alphabetic() || c == '_' {
            c.len_utf8() + word(&rest[c.len_utf8()..], |c| c.is_alphanumeric() || c == '_')
        } else if c.is_ascii_digit() {
            word(rest, |c| c.is_ascii_alphanumeric() || c == '.')
        } else if ["==", "~=", "<=", ">=", ".."].iter().any(|operator| rest.starts_with(operator)) {
            2
        } else {
            c.len_utf8()
        };
        if !c.is_whitespace() {
            tokens.push(Token { text: &rest[..length], start: at });
        }
        at += length;
    }
    tokens
}

/// The mutants of one text: places and replacements.
fn mutants(text: &str) -> Vec<(usize, usize, String)> {
    let tokens = tokens(text);
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| tokens[before]);
        let follows_value = before.is_some_and(Token::ends_value);
        let replacements: &[&str] = match token.text {
            "<" => &["<=", ">="],
            "<=" => &["<", ">"],
            ">" => &[">=", "<="],
            ">=" => &[">", "<"],
            "==" => &["~="],
            "~=" => &["=="],
            "+" => &["-"],
            "-" if follows_value => &["+"],
            "-" | "not" => &[""],
            "*" => &["/"],
            "/" => &["*"],
            "%" => &["+"],
            "and" => &["or"],
            "or" => &["and"],
            "true" => &["false"],
            "false" => &["true"],
            "max" => &["min"],
            "min" => &["max"],
            "floor" => &["ceil"],
            "ceil" => &["floor"],
            number if number.starts_with(|c: char| c.is_ascii_digit()) => {
                found.push((token.start, token.end(), format!("({number} + 1)")));
                &[]
            }
            "if" | "elseif" | "while" => {
                let end = if token.text == "while" { "do" } else { "then" };
                let end = tokens[index..].iter().find(|token| token.text == end).expect("the end of a condition");
                for value in ["true", "false"] {
                    found.push((token.end(), end.start, format!(" {value} ")));
                }
                &[]
            }
            _ => &[],
        };
        found.extend(replacements.iter().map(|with| (token.start, token.end(), (*with).to_owned())));
    }
    found
}

fn lua_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            lua_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "lua") {
            files.push(path);
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let options = Options::parse(&args);
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = package.join("../ratelimit-runtime/src/algorithm");
    let mut files = Vec::new();
    lua_files(&folder, &mut files);
    files.sort();
    let (mut all, mut texts) = (Vec::new(), HashMap::new());
    for path in files {
        let text = fs::read_to_string(&path).expect("a Lua file");
        let file = path.strip_prefix(&folder).expect("a file of the folder").to_owned();
        let its_mutants = mutants(&text).into_iter();
        all.extend(its_mutants.map(|(start, end, replacement)| Mutant { file: file.clone(), start, end, replacement }));
        texts.insert(file, text);
    }
    let total = all.len();
    let describe = |mutant: &Mutant| mutant.describe(&texts[&mutant.file]);
    let chosen = options.choose(all, |mutant| &mutant.file, describe);
    println!("{} of {total} mutants", chosen.len());
    if options.list {
        for mutant in &chosen {
            println!("{}", describe(mutant));
        }
        return ExitCode::SUCCESS;
    }
    let program = TestProgram {
        path: Path::new(args.first().expect("the test program")),
        folder: package,
        variable: "RATELIMIT_LUA_MUTANT",
    };
    let killer =
        |mutant: &Path| STAGES.iter().find_map(|stage| program.killer(&[*stage, SKIPPED].concat(), mutant.as_os_str()));
    let folder = tempfile::tempdir().expect("a folder");
    let unchanged = folder.path().join("unchanged");
    fs::write(&unchanged, "").expect("a file");
    assert_eq!(killer(&unchanged), None, "the tests fail without a mutant");
    try_all(&chosen, options.jobs, KNOWN, describe, |job, mutant| {
        let (path, text) = (folder.path().join(format!("mutant{job}")), &texts[&mutant.file]);
        fs::write(&path, format!("{text}\0{}", mutant.apply(text))).expect("a file");
        killer(&path)
    })
}
