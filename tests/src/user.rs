//! The least-privileged user of the runtime's documentation.

use std::env;
use std::sync::OnceLock;

/// A user of a server, besides the one the harness itself speaks as.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
    /// As behind the name in `ACL SETUSER`.
    pub(crate) rules: Vec<String>,
}

/// The section of the runtime's documentation about a user's rights.
fn section() -> &'static str {
    let docs = include_str!("../../ratelimit-runtime/src/guide/redis.md");
    docs.split("# Rights of the Redis user").nth(1).expect("the runtime's documentation has a section of rights")
}

/// The `ACL SETUSER ..` of the runtime's documentation: for a user who counts in the namespace `shop`.
pub fn documented_acl() -> &'static str {
    section().lines().find(|line| line.starts_with("ACL SETUSER ")).expect("a line `ACL SETUSER ..`")
}

/// As [`documented_acl`], for the user `some` with the password `secret`, who may use the counters of a prefix only.
pub fn documented_acl_of_prefix(prefix: &str) -> String {
    let words = documented_acl().split(' ').map(|word| match word {
        "limiter" => "some".to_owned(),
        word if word.starts_with('>') => ">secret".to_owned(),
        word if word.starts_with('~') => format!("~{prefix}:*"),
        word => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

impl User {
    /// With all rights of the section, on all keys: most tests have no namespace. Those of sentinels are for
    /// another user.
    fn documented() -> Self {
        let acl = documented_acl();
        let words: Vec<&str> = acl.split(' ').collect();
        let [_, _, name, rules @ ..] = words.as_slice() else { panic!("`{acl}` names no user") };
        let codes = section().split('`').filter(|code| code.starts_with('+'));
        let others = codes.filter(|code| !code.starts_with("+sentinel"));
        let password = rules.iter().find_map(|rule| rule.strip_prefix('>')).expect("a password");
        let rules = rules.iter().map(|rule| if rule.starts_with('~') { "~*" } else { rule });
        User {
            name: (*name).to_owned(),
            password: password.to_owned(),
            rules: rules.chain(others.flat_map(|rights| rights.split(' '))).map(str::to_owned).collect(),
        }
    }
}

/// The user all URLs of servers name, if the environment asks for the least-privileged one.
pub(crate) fn chosen() -> Option<&'static User> {
    static USER: OnceLock<Option<User>> = OnceLock::new();
    let chosen = USER.get_or_init(|| match env::var("RATELIMIT_TEST_USER").ok().as_deref() {
        None | Some("") => None,
        Some("limited") => Some(User::documented()),
        Some(other) => panic!("RATELIMIT_TEST_USER is `{other}`; there is only `limited`"),
    });
    chosen.as_ref()
}
