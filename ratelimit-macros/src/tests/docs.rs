//! The docs of both attributes describe all of their arguments.

use crate::args::names;
use crate::kind::AttributeKind;

#[test]
fn tables_have_a_row_for_each_argument() {
    let source = include_str!("../lib.rs");
    let (per_time, concurrent) = source.split_once("pub fn limit_request_per_time").unwrap();
    for (kind, docs) in [(AttributeKind::PerTime, per_time), (AttributeKind::Places, concurrent)] {
        let (_, table) = docs.split_once("/// | argument |").unwrap();
        let (table, _) = table.split_once("///\n").unwrap();
        let rows = table.lines().skip(2).map(|row| row.split('`').nth(1).unwrap());
        assert_eq!(rows.collect::<Vec<_>>(), names(kind), "{}", kind.name());
    }
}
