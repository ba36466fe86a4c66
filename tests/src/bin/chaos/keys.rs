//! Keys of every kind, in a cluster.

use std::collections::HashSet;
use std::sync::Arc;

use ratelimit_runtime::{OnStoreError, RateKey, Rule};
use redis::Value;
use tokio::task::JoinSet;

use crate::place::{Place, Servers, Topology};
use crate::{Extent, Faults, runtime};

const RULE: Rule = Rule::new("keys", 2, std::time::Duration::from_secs(3600));
const MEBIBYTE: usize = 1 << 20;

pub(crate) fn run(extent: Extent, faults: &mut Faults) {
    let place = Place::start(Topology::Cluster, false);
    let keys: Vec<_> = keys(extent.keys).into_iter().collect();
    let (total, errors, shared) = runtime().block_on(ask(&place, keys));
    let Servers::Cluster(cluster) = &place.servers else { unreachable!("a cluster was started") };
    let (mut stored, mut fullest) = (0, 0);
    for primary in cluster.primaries() {
        let counts = slot_counts(&cluster.nodes()[primary]);
        stored += counts.iter().sum::<usize>();
        fullest = fullest.max(counts.into_iter().max().unwrap_or(0));
    }
    println!(
        "\nKeys of random bytes, of braces, escapes and NUL, and of a mebibyte, in a cluster, each asked for once."
    );
    println!("{:>10}{:>10}{:>10}{:>8}{:>20}", "keys", "stored", "shared", "errors", "in the fullest slot");
    println!("{total:>10}{stored:>10}{shared:>10}{:>8}{fullest:>20}", errors.len());
    for error in errors.iter().take(5) {
        faults.expect(false, format!("a key: {error}"));
    }
    faults.expect(shared == 0, format!("{shared} keys found a counter of another one"));
    faults.expect(stored == total, format!("{total} keys made {stored} counters"));
    // With 6 keys a slot on average, one in 16,384 slots has about 20: 3 times as many is no accident.
    let average = total.div_ceil(16_384);
    faults.expect(fullest <= 10 * average.max(2), format!("{fullest} of {total} keys are in one slot"));
}

fn keys(random: usize) -> HashSet<Vec<u8>> {
    let mut keys = HashSet::new();
    for awkward in [
        "", "{", "}", "{}", "}{", "{a}", "a}b", "%", "%7B", ":", "::", "a:b", "\n", "\r\n", "\0", "a\0b", " ", "(",
        ",", "é",
    ] {
        for repeated in [1, 2, 100] {
            keys.insert(awkward.repeat(repeated).into_bytes());
        }
    }
    for byte in 0..8_u8 {
        let mut long = vec![b'x'; MEBIBYTE];
        long[MEBIBYTE - 1] = byte;
        keys.insert(long);
    }
    while keys.len() < random {
        let length = fastrand::usize(0..64);
        keys.insert(std::iter::repeat_with(|| fastrand::u8(..)).take(length).collect());
    }
    keys
}

struct Bytes(Arc<[Vec<u8>]>, usize);

impl RateKey for Bytes {
    fn write_key(&self, key: &mut ratelimit_runtime::KeyWriter<'_>) {
        key.write_bytes(&self.0[self.1]);
    }
}

/// Number of keys, the errors, and the number of keys that were not the first of their counter.
async fn ask(place: &Place, keys: Vec<Vec<u8>>) -> (usize, Vec<String>, usize) {
    let builder = place.builder().deadline(std::time::Duration::from_secs(20)).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.expect("the servers answer");
    let keys: Arc<[Vec<u8>]> = keys.into();
    let mut tasks = JoinSet::new();
    for first in 0..64 {
        let (limiter, keys) = (limiter.clone(), Arc::clone(&keys));
        tasks.spawn(async move {
            let (mut errors, mut shared) = (Vec::new(), 0);
            for index in (first..keys.len()).step_by(64) {
                match limiter.acquire(&RULE, Bytes(Arc::clone(&keys), index)).await {
                    Ok(permit) => shared += usize::from(permit.remaining() != 1),
                    Err(error) => errors.push(error.to_string()),
                }
            }
            (errors, shared)
        });
    }
    let (mut errors, mut shared) = (Vec::new(), 0);
    for (theirs, more) in tasks.join_all().await {
        errors.extend(theirs);
        shared += more;
    }
    (keys.len(), errors, shared)
}

/// Number of keys in each slot of a node.
fn slot_counts(node: &ratelimit_harness::RedisServer) -> Vec<usize> {
    const COUNT: &[u8] = b"
        local counts = {}
        for slot = 0, 16383 do
            counts[slot + 1] = redis.call('CLUSTER', 'COUNTKEYSINSLOT', slot)
        end
        return counts";
    let Value::Array(counts) = node.command(&[b"EVAL", COUNT, b"0"]) else { panic!("no list of counts") };
    let count = |value| if let Value::Int(count) = value { usize::try_from(count).expect("a count") } else { 0 };
    counts.into_iter().map(count).collect()
}
