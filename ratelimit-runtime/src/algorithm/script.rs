//! The Lua scripts, assembled from the bodies of the algorithms.

use std::{borrow::Cow, fmt::Write as _};

use redis::Value;

use super::{
    contract::LuaScript,
    table,
    wire::{PackedNumbers, pack},
};
use crate::{decision::Outcome, store::Charge};

/// Upper bound of the steps of decisions that are sent together.
///
/// A server does nothing else meanwhile. At 0.1 µs a step, that is some 6 ms. A command of the
/// script is eight steps. One pass of a loop, a call of a function, and 64 bytes of a string are
/// one step each.
pub(crate) const MAX_STEPS: u64 = 64_000;

/// Decisions to make equal charges of one counter; see `repeat.lua`.
pub(crate) const DECISIONS_PER_REPEAT: u64 = 3;
/// Decisions for each of several rules, an evaluation and a charge; see `transaction.lua`.
pub(crate) const DECISIONS_PER_TRANSACTION: u64 = 2;

/// The operation of a script for one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ScriptMode {
    Evaluate,
    Charge,
    /// Renews the holds that [`renewal_args`] describes.
    Renew,
    /// Replaces a hold by a charge of the amount used.
    Settle,
    /// Settles only a hold that still counts, since an earlier attempt may have settled it.
    SettleAgain,
    /// Bans the counter, or ends its ban.
    Ban,
    /// Charges, or bans the counter if its limit is reached.
    ChargeOrBan,
}

/// Bans the counter after a denial. `ban`: the ms. A cost that others hold does not ban, as in `Charge::starts_ban`:
/// then `reply[4]` is above 0, and 1 if only ended holds are in the way. Nor does a denial by a ban, for which `fits`
/// is nil: so no refusal prolongs a ban.
const BAN_IF_OVER: &str = "\
if fits == false and not (type(reply) == 'table' and (reply[4] or 0) > 0) then
@ban
end
";

/// Script that decides on one counter, refunds excepted.
///
/// ARGV: [`script_args`](table::script_args), then [`stored_cost`](table::stored_cost) if
/// [`needs_stored_cost`](table::needs_stored_cost). For [`ScriptMode::Ban`] the second is the ms of
/// the ban; 0 ends it. For [`ScriptMode::ChargeOrBan`] the ms are the third.
pub(crate) fn decide_script(id: usize, mode: ScriptMode) -> String {
    let LuaScript { args, ban, unban, .. } = script(id);
    let (ban, unban) = (source(ban), source(unban));
    let (charge, then) = match mode {
        ScriptMode::Evaluate => ("false", String::new()),
        ScriptMode::Charge => ("true", String::new()),
        ScriptMode::Renew => ("'renew'", String::new()),
        ScriptMode::Settle => ("'settle'", String::new()),
        ScriptMode::SettleAgain => ("'again'", String::new()),
        ScriptMode::ChargeOrBan => {
            ("true", format!("local ban = 0 + ARGV[3]\n{}", BAN_IF_OVER.replace("@ban\n", &ban)))
        }
        ScriptMode::Ban => {
            ("false", format!("local ban = 0 + charged\nif ban > 0 then\n{ban}elseif fits == nil then\n{unban}end\n"))
        }
    };
    let decide = decide_body(id);
    let body = format!(
        "local charge, time, now, value, reply, fits = {charge}, nil, nil, nil, nil, nil\nrepeat\n{decide}until true\n{then}return reply"
    );
    for_one_counter(args, &body)
}

/// Script that decides on several counters, each by itself, all with the script of this id; see
/// `batch.lua`.
pub(crate) fn batch_script(id: usize) -> String {
    fill(&source(include_str!("script/batch.lua")), id)
}

/// Script that makes as many as fit of some equal charges of one counter; see `repeat.lua`.
///
/// ARGV: [`packed_args`], the number of charges, and the number of charges that the limit has room
/// for.
pub(crate) fn repeat_script(id: usize) -> String {
    const SCRIPT: &str = "\
local key, call, times, most = KEYS[1], redis.call, 0 + ARGV[2], 0 + ARGV[3]
local time, now, value, reply, fits
@time
local @known, its_charge = struct.unpack('@format', ARGV[1])
@repeat
return reply";
    fill(SCRIPT, id)
}

/// Script that decides on several counters, all or nothing.
///
/// KEYS: the counters. ARGV: 1 to charge and 0 to evaluate, then for each counter
/// [`script_id`](table::script_id), [`script_args`](table::script_args) and
/// [`stored_cost`](table::stored_cost). If the script `bans`, then the ms of the ban of each counter,
/// 0 for none.
pub(crate) fn transaction_script(bans: bool) -> String {
    let mut script = String::from("local scripts = {}\n");
    for (id, LuaScript { args, ban, .. }) in table::scripts().enumerate() {
        let (args, decide) = (unpacked(args), decide_body(id));
        // An evaluation that bans is the only one: then nothing is charged.
        let ban = if bans {
            BAN_IF_OVER.replace("if fits", "if ban > 0 and fits").replace("@ban\n", &source(ban))
        } else {
            String::new()
        };
        let _ = write!(
            script,
            "scripts[{id}] = function(key, call, charge, time, now, numbers, charged, ban)\n\
             local value, reply, fits\n{args}\nrepeat\n{decide}until true\n{ban}return reply, fits\nend\n"
        );
    }
    let ban = if bans { ", 0 + ARGV[1 + 3 * #KEYS + i]" } else { "" };
    script + &source(include_str!("script/transaction.lua")).replace("@ban", ban)
}

/// Script that refunds a charge and returns the amount refunded. ARGV:
/// [`refund_args`](table::refund_args).
pub(crate) fn refund_script(id: usize) -> String {
    let LuaScript { refund, refund_args, .. } = script(id);
    for_one_counter(refund_args, &source(refund))
}

fn script(id: usize) -> &'static LuaScript {
    table::scripts().nth(id).expect("an id of the table")
}

/// The text of a Lua file.
#[cfg(not(lua_mutants))]
fn source(text: &'static str) -> Cow<'static, str> {
    text.into()
}

/// The text of a Lua file, or of its mutant. The environment names a file with the text before and
/// after the change, and `\0` between them. See `tests/src/bin/lua_mutants.rs`.
#[cfg(lua_mutants)]
fn source(text: &'static str) -> Cow<'static, str> {
    let Ok(path) = std::env::var("RATELIMIT_LUA_MUTANT") else { return text.into() };
    let mutant = std::fs::read_to_string(path).expect("the file of the mutant");
    // A script may declare variables in front of the file.
    match mutant.split_once('\0').and_then(|(before, after)| Some((text.strip_suffix(before)?, after))) {
        Some((head, after)) => format!("{head}{after}").into(),
        None => text.into(),
    }
}

/// The body that decides.
fn decide_body(id: usize) -> String {
    source(script(id).decide).replace("@banned\n", &source(include_str!("script/banned.lua")))
}

/// Declares the numbers that an argument holds.
fn unpacked(names: &str) -> String {
    format!("local {names} = struct.unpack('<{}', numbers)", "d".repeat(names.split(',').count()))
}

/// KEYS: the counter. ARGV: numbers with these names, and the stored cost if the body needs it.
fn for_one_counter(names: &str, body: &str) -> String {
    let numbers = unpacked(names);
    format!("local key, call, numbers, charged = KEYS[1], redis.call, ARGV[1], ARGV[2]\n{numbers}\n{body}")
}

/// Inserts the parts of an algorithm into a script that takes [`packed_args`].
fn fill(template: &str, id: usize) -> String {
    let LuaScript { args, first_of_many, place, stored, fitting, has_value, .. } = script(id);
    let names: Vec<_> = args.split(", ").collect();
    let rule: Vec<_> = (1..=names.len()).map(|number| format!("rule[{number}]")).collect();
    template
        .replace("@repeat\n", &source(include_str!("script/repeat.lua")))
        .replace(
            "@time",
            "time = call('TIME')\n\
             time[1], time[2] = 0 + time[1], 0 + time[2]\n\
             now = time[1] * 1000 + math.floor(time[2] / 1000)",
        )
        .replace("@format", &format!("<{}", "d".repeat(names.len() + 1)))
        .replace("@values", if *has_value { "call('MGET', unpack(KEYS))" } else { "values" })
        .replace("@first_of_many", first_of_many)
        .replace("@first", names[0])
        .replace("@place", place)
        .replace("@stored", stored)
        .replace("@fitting", fitting)
        .replace("@numbers", args)
        .replace("@known", &names.iter().map(|name| format!("its_{name}")).collect::<Vec<_>>().join(", "))
        .replace("@charge", &format!("rule[{}]", names.len() + 1))
        .replace("@rule", &rule.join(", "))
        .replace("@decide\n", &decide_body(id))
}

/// Numbers for [`batch_script`] and [`repeat_script`]: those of one charge, and its stored cost.
#[allow(clippy::cast_precision_loss)] // see `pack`
pub(crate) fn packed_args(charge: &Charge) -> PackedNumbers {
    let mut numbers = table::script_args(charge);
    numbers.extend((table::stored_cost(charge) as f64).to_le_bytes());
    numbers
}

/// Numbers of one hold to renew.
pub(crate) fn renewal_args(charge: &Charge) -> PackedNumbers {
    let (id, lease_ms) = charge.hold.map_or((0, 0), |hold| (hold.id, hold.lease_ms()));
    pack([id, lease_ms, charge.cost])
}

/// Reply to one of several equal charges made at once, from the reply to the charge `later` places
/// before it.
pub(crate) fn reply_for_nth(charge: &Charge, reply: &Value, later: i64) -> Option<Value> {
    let more = later.checked_mul(i64::try_from(charge.cost).ok()?)?;
    table::shift_reply(&charge.rule, reply, more)
}

/// Outcome of one of several equal charges made at once, if [`outcome_for_nth`] derives those of
/// the others from it.
pub(crate) fn batch_outcome(charge: &Charge, reply: &Value) -> Option<Outcome> {
    // Many callers wait for their outcomes at once, so no reply is made for each of them.
    let is_shared = table::repeats_share_receipt(&charge.rule);
    let (found, receipt) = if is_shared { table::parse_reply(charge, true, reply)? } else { return None };
    found.fits.then(|| Outcome::new(found.decision, receipt))
}

/// Outcome of an equal charge `later` places after another one.
#[inline]
pub(crate) fn outcome_for_nth(charge: &Charge, first: &Outcome, later: i64) -> Option<Outcome> {
    let less = later.checked_mul(i64::try_from(charge.cost).ok()?)?;
    let remaining = first.remaining.value().checked_add_signed(less.checked_neg()?)?;
    (remaining <= charge.rule.limit()).then_some(Outcome { remaining: remaining.into(), ..*first })
}
