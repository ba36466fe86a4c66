//! What is sent to a server, and what a server that lacks a script is sent instead.

use std::borrow::Borrow;

use redis::{Cmd, ServerErrorKind, Value};

use super::{link::Connection, script::Script};
use crate::{
    CounterName, algorithm,
    store::{Charge, StoreError},
};

/// A command on counters of one slot.
pub(super) enum Command<'a> {
    Script(ScriptCall<'a>),
    Delete(&'a CounterName),
}

/// A script with its keys and arguments.
pub(super) struct ScriptCall<'a> {
    script: &'static Script,
    charges: &'a [Charge],
    arguments: Arguments,
}

#[derive(Clone, Copy)]
enum Arguments {
    One,
    All { charge: bool },
    GiveBack,
}

impl<'a> Command<'a> {
    /// Charges if all of them fit and it is to `consume`.
    pub(super) fn decide(charges: &'a [Charge], consume: bool) -> Self {
        Self::Script(match charges {
            [one] => {
                let script = Script::decide_one(one.rule.counted_by(), consume && one.cost > 0);
                ScriptCall { script, charges, arguments: Arguments::One }
            }
            _ => ScriptCall { script: Script::decide_all(), charges, arguments: Arguments::All { charge: consume } },
        })
    }

    pub(super) fn give_back(charge: &'a Charge) -> Self {
        let script = Script::give_back(charge.rule.counted_by());
        Self::Script(ScriptCall { script, charges: std::slice::from_ref(charge), arguments: Arguments::GiveBack })
    }

    /// The first counter; the others are in the same slot.
    pub(super) fn counter(&self) -> Option<&CounterName> {
        match self {
            Self::Script(script) => script.charges.first().map(|charge| &charge.counter),
            Self::Delete(counter) => Some(counter),
        }
    }

    /// A script by its digest, or, for a server that does not know it, by its text.
    fn packed(&self, by_digest: bool) -> Cmd {
        match self {
            Self::Script(script) => script.packed(by_digest),
            Self::Delete(counter) => {
                let mut command = redis::cmd("DEL");
                command.arg(counter.as_bytes());
                command
            }
        }
    }
}

impl ScriptCall<'_> {
    fn packed(&self, by_digest: bool) -> Cmd {
        let keys = self.charges.iter().map(|charge| charge.counter.as_bytes().len()).sum::<usize>();
        let text = if by_digest { self.script.digest.len() } else { self.script.text.len() };
        let count = 4 + self.charges.len() * 4;
        let mut command = Cmd::with_capacity(count, text + keys + count * 16);
        if by_digest {
            command.arg("EVALSHA").arg(&self.script.digest);
        } else {
            command.arg("EVAL").arg(&self.script.text);
        }
        command.arg(self.charges.len());
        for charge in self.charges {
            command.arg(charge.counter.as_bytes());
        }
        if let Arguments::All { charge } = self.arguments {
            command.arg(u64::from(charge));
        }
        for charge in self.charges {
            match self.arguments {
                Arguments::One => {
                    command.arg(&*algorithm::numbers(charge));
                    if algorithm::is_told(charge) {
                        command.arg(algorithm::charged(charge));
                    }
                }
                Arguments::All { .. } => {
                    command.arg(algorithm::name(charge.rule.counted_by()));
                    command.arg(&*algorithm::numbers(charge)).arg(algorithm::charged(charge));
                }
                Arguments::GiveBack => {
                    command.arg(&*algorithm::give_back_numbers(charge));
                }
            }
        }
        command
    }
}

/// Sends commands over a connection in one go, and those scripts that the server does not know once more as text. Replies in their order.
///
/// With `asking`, a node that is about to take over their slot runs them all the same.
pub(super) async fn send<'a, C: Borrow<Command<'a>>>(
    connection: &mut Connection,
    commands: &[C],
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    let mut replies = send_once(connection, commands.iter().map(C::borrow), true, asking).await?;
    let unknown: Vec<usize> = (0..replies.len()).filter(|&at| is_noscript(&replies[at])).collect();
    if !unknown.is_empty() {
        // On the same connection: another server may not know the script either.
        let again = unknown.iter().map(|&at| commands[at].borrow());
        let again = send_once(connection, again, false, asking).await?;
        for (at, reply) in unknown.into_iter().zip(again) {
            replies[at] = reply;
        }
    }
    Ok(replies)
}

async fn send_once<'c, 'a: 'c>(
    connection: &mut Connection,
    commands: impl ExactSizeIterator<Item = &'c Command<'a>>,
    by_digest: bool,
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    if !asking {
        return connection.send(commands.map(|command| command.packed(by_digest))).await;
    }
    // It holds for one command.
    let pairs: Vec<_> = commands.flat_map(|command| [redis::cmd("ASKING"), command.packed(by_digest)]).collect();
    let mut replies = connection.send(pairs.into_iter()).await?.into_iter();
    let mut answers = Vec::with_capacity(replies.len() / 2);
    while let (Some(asked), Some(reply)) = (replies.next(), replies.next()) {
        answers.push(if matches!(asked, Value::ServerError(_)) { asked } else { reply });
    }
    Ok(answers)
}

fn is_noscript(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
}
