//! An expression that is being typed reaches the generated code, so that editors can complete it.

use super::compile_errors;
use crate::expand::expand;
use crate::kind::AttributeKind;

const FN: &str = "async fn f(req: Req) -> R {}";

/// The generated code of an argument that follows the required ones.
fn generated(argument: &str, item: &str) -> String {
    let args = format!("prefix = \"a\", unit = Days, count = 1, {argument}");
    let tokens = expand(AttributeKind::PerTime, args.parse().unwrap(), item.parse().unwrap());
    assert_eq!(compile_errors(tokens.clone()), [], "{argument}");
    tokens.to_string()
}

#[test]
fn what_is_typed_stands_where_the_whole_expression_would() {
    for (incomplete, complete) in [
        ("key = req.", "key = req.completed"),
        ("key = req.shop., on_store_error = Deny", "key = req.shop.completed, on_store_error = Deny"),
        ("key = (req.shop, req.)", "key = (req.shop, req.completed)"),
        ("cost = req., on_limit = Wait", "cost = req.completed, on_limit = Wait"),
        ("limiter = &req.", "limiter = &req.completed"),
        ("on_limit = Return(Err(refused.))", "on_limit = Return(Err(refused.completed))"),
        (
            "algorithm = SlidingLog, cost = Settled(max = 1, |outcome| outcome.)",
            "algorithm = SlidingLog, cost = Settled(max = 1, |outcome| outcome.completed)",
        ),
    ] {
        let complete = generated(complete, FN);
        assert!(complete.contains("completed"));
        let without = |text: &str| text.replace(' ', "").replace("completed", "");
        assert_eq!(without(&generated(incomplete, FN)), without(&complete), "{incomplete}");
    }
    let stacked = "#[limit_request_per_time(\"b\", 1, Days, 1, key = req.)] async fn f(req: Req) -> R {}";
    assert!(generated("key = req", stacked).replace(' ', "").contains("key(&(req.))"));
    let block = "impl S { #[limit_request_per_time(\"b\", 1, Days, 1, key = req.)] async fn f(req: Req) -> R {} }";
    assert!(generated("key = 1", block).replace(' ', "").contains("key(&(req.))"));
}

/// A dot that a name does not complete is an error of the argument.
#[test]
fn other_mistakes_are_reported_here() {
    for argument in ["key = .", "key = id..", "key = req., cots = 1", "key = id +", "permit = a."] {
        let args = format!("prefix = \"a\", unit = Days, count = 1, {argument}");
        let tokens = expand(AttributeKind::PerTime, args.parse().unwrap(), FN.parse().unwrap());
        assert!(!compile_errors(tokens).is_empty() || argument == "key = id..", "{argument}");
    }
}
