//! Expands thousands of malformed attributes. Each one reports an error or expands; none panics.

use std::{env, panic::catch_unwind};

use proc_macro2::TokenStream;

use super::compile_errors;
use crate::args::names;
use crate::expand::expand;
use crate::incomplete::complete;
use crate::kind::AttributeKind;
use crate::rate_key::derive;

/// The number of attributes: `RATELIMIT_INPUTS`, or 6,000.
fn rounds() -> usize {
    env::var("RATELIMIT_INPUTS").map_or(6_000, |number| {
        number.parse().unwrap_or_else(|_| panic!("RATELIMIT_INPUTS is {number:?}; give it a number of inputs"))
    })
}

const SEED: u64 = 0x5EED_0F1A_3C0D_E5A1;

/// xorshift64
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }

    fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }

    /// A word, or the name of an argument.
    fn word(&mut self) -> &'static str {
        let names: Vec<_> = AttributeKind::ALL.into_iter().flat_map(names).collect();
        let at = self.below(names.len() + WORDS.len());
        names.get(at).copied().unwrap_or_else(|| WORDS[at - names.len()])
    }
}

/// Words besides the names of the arguments.
const WORDS: &[&str] = &[
    "skip",
    "prefx",
    "_",
    "self",
    "Minutes",
    "Days",
    "Minuts",
    "FixedWindow",
    "SlidingLog",
    "SlidingWindow",
    "TokenBucket",
    "LeakyBucket",
    "align",
    "buckets",
    "burst",
    "refill",
    "queue",
    "Greedy",
    "Interval",
    "Elapsed",
    "Settled",
    "max",
    "MAX",
    "Reject",
    "Wait",
    "Return",
    "Local",
    "Deny",
    "Shared",
    "true",
    "false",
    "async",
    "move",
    "fn",
    "impl",
    "const",
    "if",
    "match",
    "r#type",
    "=",
    "=",
    "=",
    ",",
    ",",
    ",",
    "::",
    "==",
    "=>",
    "-",
    "&",
    "&&",
    "#",
    "!",
    "?",
    ".",
    "..",
    "..=",
    "|",
    ";",
    ":",
    "<",
    ">",
    "@",
    "$",
    "'a",
    "~",
    "0",
    "1",
    "100",
    "-1",
    "1.5",
    "1e3",
    "0x10",
    "0b2u8",
    "5u64",
    "5i8",
    "5foo",
    "'c'",
    "b'c'",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999999",
    "\"\"",
    "\"item\"",
    "\"30s\"",
    "\"5d\"",
    "\"1m30s\"",
    "\"99999999999999999999d\"",
    "\"\\u{e9}s\"",
    "\"a\"b",
    "r#\"raw\"#",
    "b\"bytes\"",
    "c\"c\"",
    "\"1é\"",
    "1f32",
    "|x| x",
    "x.await",
    "format!()",
];

const LITERALS: &[&str] = &[
    "0",
    "7",
    "1.5",
    "0x10",
    "5u64",
    "5i8",
    "18446744073709551615",
    "18446744073709551616",
    "\"\"",
    "\"item\"",
    "\"Minutes\"",
    "\"0s\"",
    "\"5s5\"",
    "\"é\"",
    "\"999999999999999d\"",
    "\"18446744073709551615ms1ms\"",
    "\"99999999999999999999s\"",
    "b\"item\"",
    "'c'",
];

const PATHS: &[&str] = &[
    "::Days",
    "a::b::Minutes",
    "crate::Wait",
    "Self::N",
    "super::super::Local",
    "<T as U>::N",
    "a::",
    "self",
    "r#Days",
    "Return(refused)",
    "Wait(max)",
    "Elapsed(max = \"1s\", max = \"1s\")",
    "Settled(max = 5)",
    "Settld(max = 5, |x| x)",
    "const { 5 }",
    "{ 5 }",
    "(5)",
    "-5",
];

const VALID: &[&str] = &[
    r#"prefix = "item", ttl = 1, unit = Minutes, count = 100, key = req.seller_id"#,
    r#""item", 1, Minutes, 100, key = (a, b.c(), &d[0])"#,
    r#"prefix = concat!("a", "b"), unit = TimeUnit::Days, count = const { N }, algorithm = FixedWindow(align = true)"#,
    r#""item", TTL, Hours, plan.limit(), algorithm = Algorithm::SlidingLog, cost = rows.len()"#,
    r#"prefix = "a", unit = Days, count = 1, on_limit = Wait(max = "1m30s"), on_store_error = Deny, permit = p"#,
    r#"prefix = "a", unit = Days, count = 1, on_limit = Return(cached(refused).await), limiter = &self.l, crate = ::a::b"#,
    r#"prefix = "a", unit = Days, count = 1, key = id, on_missing_key = Shared, prefetch = 1, shadow = false"#,
    r#"prefix = "a", unit = Days, count = 1, algorithm = TokenBucket(burst = 5, refill = Interval), shadow = true"#,
    r#"prefix = "a", unit = Days, count = n, algorithm = TokenBucket(refill = Refill::Greedy), cost = 5"#,
    r#""a", 10, Seconds, 100, algorithm = SlidingWindow(buckets = 20), cost = 7"#,
    r#"prefix = "a", unit = Days, count = 1, algorithm = LeakyBucket(queue = 5), on_limit = Wait(max = "1s")"#,
    r#"prefix = "a", unit = Days, count = 1, algorithm = LeakyBucket(queue = 5), prefetch = 5, cost = Elapsed(max = "5s")"#,
    r#""a", 1, Minutes, 20_000, algorithm = SlidingLog, cost = Elapsed(max = "5s"), permit = p"#,
    r#""a", 1, Minutes, 9_000, algorithm = SlidingLog, cost = Settled(max = 4_000, |outcome| outcome.tokens())"#,
    r#""a", 1, Minutes, 9_000, algorithm = SlidingLog, cost = Settled(max = most, tokens), on_limit = Wait"#,
    r#""a", 1, Minutes, 100, key = req., cost = (a.b., c)"#,
    r#""a", ttl(), Minutes, count as u64, key = "req.id", algorithm = TokenBucket { burst: 5 }"#,
    r#""b", 1, Days, 5, key = id, permit = id, ttl = "1m""#,
    r#""b", 1, Days, 99_999_999_999, algorithm = SlidingLog"#,
    r#""a", 1, Days, 5, blocking, key = id"#,
    "rule = ORDERS, key = id, on_limit = Wait",
    r#"prefix = "a", period = "90s", count = 5, on_limit = Wait(max = MAX), algorithm = SlidingWindow(buckets = N)"#,
    r#"prefix = "a", period = Duration::from_secs(5), count = 5, ttl = 5, algorithm = SlidingLog, cost = Elapsed(max = MAX)"#,
    "rule = Self::RULES[0].with_shadow(true), key = id, cost = Settled(max = 5, |o| 5)",
    r#"rule = crate::rules::ORDERS, prefix = "a", count = 5, shadow = true, cost = Elapsed(max = "5s")"#,
    "skip",
];

const VALID_CONCURRENT: &[&str] = &[
    r#""a", 3, key = (a, b), lease = "1m", on_limit = Wait(max = "5s"), permit = p"#,
    r#"prefix = "a", count = const { N }, key = id, on_missing_key = Deny, on_limit = Return(Err(refused))"#,
    r#""a", 3, lease = LEASE, on_limit = Wait(max = MAX)"#,
    "rule = EXPORTS, key = id, permit = p",
    "skip",
];

const ITEMS: &[&str] = &[
    "async fn f(id: u64) -> Result<u64, E> { Ok(id) }",
    "pub(crate) async unsafe fn f<const N: usize>(&self, (a, b): (u8, u8)) -> [u8; N] where T: X { #![allow(x)] a }",
    "fn f() -> impl Future<Output = R> { let x = 1; async move { x } }",
    "fn f() -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async move { let (req, id) = { let __arg1 = __arg1; __arg1 }; id }) }",
    "#[limit_request_per_time(\"b\", 1, Days, 5, key = id)] #[inline] async fn f(id: u64) -> R {}",
    "#[limit_concurrent_requests(\"b\", 5, key = id, lease = \"1h\")] async fn f(id: u64) -> R {}",
    "impl S { const X: u8 = 1; async fn f(&self) -> R {} #[limit_request_per_time(skip)] async fn g() {} fn h() {} }",
    "unsafe impl<T> Tr for S<{ 1 }> { type A = u8; async fn f(&self) -> R {} m!(); }",
    "impl S {}",
    "struct S { a: u8 }",
    "pub trait T { async fn f(); }",
    "fn f() -> BoxFuture<R> { { async move {}.instrument(span).boxed() } }",
    "fn f() { rt.block_on(async {}) }",
    "fn f() {}",
    "fn f(&self) -> R { if a { return b?; } c }",
    "async fn f();",
    "const fn f() {}",
    "type F = impl Fn();",
    "mod m { }",
    "let x = 5;",
    "",
];

/// Types that a key may be derived for.
const DERIVED: &[&str] = &[
    "struct Seller(u64);",
    "pub(crate) struct Account<'a, T: Copy = u8, const N: usize = 5> where T: X { shop: &'a str, #[x] seller: [T; N], }",
    "enum Caller { Anonymous, r#Type(u64, (f32,)), Account { id: u64, r#type: f64 } = 5 }",
    "union U { a: u8, b: f32 }",
    "struct Unit;",
    "enum Never {}",
    "struct S(f64, std::f32, T<f64>);",
    "struct S { .. }",
    "type T = u8;",
];

fn soup(dice: &mut Dice, depth: usize) -> String {
    let mut text = String::new();
    for _ in 0..dice.below(12) {
        if depth < 4 && dice.below(8) == 0 {
            let inside = soup(dice, depth + 1);
            let (open, close) = [('(', ')'), ('[', ']'), ('{', '}')][dice.below(3)];
            text.extend([open.to_string(), inside, close.to_string()]);
        } else {
            text += dice.word();
        }
        text.push(' ');
    }
    text
}

/// The tokens, of which a few are removed, doubled, replaced or cut off, at any depth.
fn mutate(dice: &mut Dice, tokens: TokenStream) -> TokenStream {
    use proc_macro2::{Group, TokenTree};
    let mut changed = Vec::new();
    for token in tokens {
        match dice.below(40) {
            0 => {}
            1 => changed.extend([token.clone(), token]),
            2 => changed.extend(soup(dice, 3).parse::<TokenStream>().unwrap_or_default()),
            3 => changed.extend(dice.word().parse::<TokenStream>().unwrap_or_default()),
            4 => changed.push(Group::new(proc_macro2::Delimiter::None, token.into()).into()),
            5 if dice.below(4) == 0 => break,
            6..9 if matches!(token, TokenTree::Literal(_)) => {
                changed.extend(dice.pick(LITERALS).parse::<TokenStream>().unwrap());
            }
            6..8 if matches!(token, TokenTree::Ident(_)) => {
                changed.extend(dice.pick(PATHS).parse::<TokenStream>().unwrap());
            }
            _ => changed.push(match token {
                TokenTree::Group(group) => Group::new(group.delimiter(), mutate(dice, group.stream())).into(),
                other => other,
            }),
        }
    }
    changed.into_iter().collect()
}

#[test]
fn no_derived_key_panics() {
    let (mut dice, rounds) = (Dice(SEED), rounds() / 3);
    let (mut expanded, mut refused) = (0, 0);
    while expanded + refused < rounds {
        let item = match dice.below(8) {
            0 => soup(&mut dice, 0).parse().ok(),
            1 => dice.pick(ITEMS).parse().ok(),
            2 => dice.pick(DERIVED).parse().ok(),
            _ => {
                let item = dice.pick(DERIVED).parse().unwrap();
                Some(mutate(&mut dice, item))
            }
        };
        let Some(item): Option<TokenStream> = item else { continue };
        let shown = item.to_string();
        let tokens = catch_unwind(|| derive(item)).unwrap_or_else(|_| panic!("panicked, seed {SEED:#x}:\n{shown}"));
        if compile_errors(tokens.clone()).is_empty() {
            assert!(syn::parse2::<syn::ItemImpl>(tokens.clone()).is_ok(), "no code:\n{shown}\n{tokens}");
            expanded += 1;
        } else {
            refused += 1;
        }
    }
    println!("derived keys: {expanded} expanded, {refused} refused");
    assert!(expanded * 20 >= rounds && refused * 20 >= rounds, "{expanded} : {refused}");
}

#[test]
fn nothing_panics() {
    println!("seed {SEED:#x}");
    let (mut dice, rounds) = (Dice(SEED), rounds());
    let (mut expanded, mut refused) = (0, 0);
    while expanded + refused < rounds {
        let (kind, valid) = match dice.below(4) {
            0 => (AttributeKind::Places, VALID_CONCURRENT),
            _ => (AttributeKind::PerTime, VALID),
        };
        let args = match dice.below(6) {
            0 => soup(&mut dice, 0).parse().ok(),
            1 => dice.pick(valid).parse().ok(),
            _ => {
                let valid = dice.pick(valid).parse().unwrap();
                Some(mutate(&mut dice, valid))
            }
        };
        let item = match dice.below(8) {
            0 => soup(&mut dice, 0).parse().ok(),
            1 | 2 => {
                let item = dice.pick(ITEMS).parse().unwrap();
                Some(mutate(&mut dice, item))
            }
            3 => dice.pick(ITEMS).parse().ok(),
            _ => dice.pick(&ITEMS[..8]).parse().ok(),
        };
        // A soup that is no sequence of tokens never reaches a macro.
        let (Some(args), Some(item)): (Option<TokenStream>, Option<TokenStream>) = (args, item) else {
            continue;
        };
        // rustc reports an item with a syntax error itself. No macro gets one.
        let whole = syn::parse2::<syn::File>(item.clone()).is_ok();
        let incomplete = complete(args.clone()).or_else(|| complete(item.clone())).is_some();
        let shown = format!("#[{}({args})]\n{item}", kind.name());
        let tokens =
            catch_unwind(|| expand(kind, args, item)).unwrap_or_else(|_| panic!("panicked, seed {SEED:#x}:\n{shown}"));
        let errors = compile_errors(tokens.clone());
        if errors.is_empty() {
            // rustc reports an incomplete expression.
            let parsed = syn::parse2::<syn::File>(tokens.clone()).is_ok() || incomplete;
            assert!(parsed || !whole, "neither code nor an error, seed {SEED:#x}:\n{shown}\n{tokens}");
            expanded += 1;
        } else {
            assert!(errors.iter().all(|(text, _)| !text.is_empty()), "{shown}");
            refused += 1;
        }
    }
    println!("attributes: {expanded} expanded, {refused} refused");
    assert!(expanded * 20 >= rounds && refused * 20 >= rounds, "{expanded} : {refused}");
}
