//! The primary that sentinels name.
//!
//! All sentinels are asked concurrently. The server that a majority names is used, if it reports
//! itself as a primary: a sentinel that is cut off, or late with a failover, names the old one.
//! Without a majority the current primary is kept, if a sentinel names it.

use std::{
    fmt,
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    address::{ServerAddress, addresses},
    backoff::TimeLimit,
    quorum::{Votes, are_mostly_misconfigured, common_doubt, quorum},
    reply::explain,
};
use crate::error::{Doubt, StoreError};

/// Pause between two queries for the primary.
const INTERVAL: Duration = Duration::from_millis(500);
/// Longest pause between look-ups without a change: a stale sentinel may go on naming another
/// server.
const LONGEST_INTERVAL: Duration = Duration::from_secs(8);

/// Time for the remaining sentinels once a majority is impossible. One of them may name the current
/// primary, and the error quotes their answers.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The sentinels of a service.
pub(crate) struct Sentinels {
    all: Vec<Client>,
    service: String,
    /// Settings of the service's servers; its address is not used.
    template: Client,
    /// The primary that was used last.
    current: Mutex<Option<ServerAddress>>,
}

impl Sentinels {
    pub(super) fn new(all: Vec<Client>, service: String, template: Client) -> Self {
        Self { all, service, template, current: Mutex::default() }
    }

    /// Finds the primary. Returns it with the connection over which it reported that role.
    ///
    /// `connect` opens the connection; its second value is passed through.
    pub(super) async fn primary<T, F>(
        &self,
        limit: TimeLimit,
        connect: impl Fn(Client, TimeLimit) -> F,
    ) -> Result<(Client, MultiplexedConnection, T), StoreError>
    where
        F: Future<Output = Result<(MultiplexedConnection, T), StoreError>>,
    {
        let answers = self.all.iter().map(|sentinel| async {
            let answer = async { self.named(&mut connect_sentinel(sentinel, limit).await?).await };
            let named = limit.within(answer).await.unwrap_or_else(|_| Err(late(limit)));
            named.map_err(|error| (ServerAddress::of(sentinel), error))
        });
        let (named, failed) = quorum(answers, |named, left| self.patience(named, left, limit)).await;
        let mut reasons: Vec<String> = Vec::new();
        let chosen = self.chosen(&named);
        if chosen.is_none()
            && let Some((address, votes)) = named.first()
        {
            let count = self.all.len();
            reasons
                .push(format!("{votes} of {count} sentinels {} {address}", if *votes == 1 { "names" } else { "name" }));
        }
        // The address may be outdated, and another server use it now.
        let mut misconfigured =
            chosen.is_some() || named.is_empty() && are_mostly_misconfigured(failed.iter().map(|(_, error)| error));
        let mut doubt = common_doubt(failed.iter().map(|(_, error)| error));
        if let Some(address) = chosen {
            let client = address.client(&self.template)?;
            let asked = async {
                let (mut connection, with) = connect(client.clone(), limit).await?;
                let role = role(&mut connection).await?;
                Ok((role, connection, with))
            };
            match limit.within(asked).await.unwrap_or_else(|_| Err(late(limit))) {
                Ok((role, connection, with)) if role == "master" => {
                    *self.lock_current() = Some(address);
                    return Ok((client, connection, with));
                }
                Ok((role, ..)) => {
                    misconfigured = false;
                    reasons.push(format!("{address} is named, but says it is a {role}"));
                }
                Err(error) => {
                    misconfigured &= error.misconfigured;
                    doubt = error.doubt(); // those of the sentinels are others
                    reasons.push(format!("{address} is named: {error}"));
                }
            }
        }
        reasons.extend(failed.into_iter().map(|(address, error)| format!("{address}: {error}")));
        let reason = format!("no primary found for the service `{}`: {}", self.service, reasons.join("; "));
        Err(if misconfigured {
            StoreError::misconfigured(reason).with_doubt(doubt)
        } else {
            StoreError::unavailable(reason)
        })
    }

    /// The server to use: the one that a majority names, or else the current one.
    fn chosen(&self, named: &[(ServerAddress, usize)]) -> Option<ServerAddress> {
        let current = self.lock_current();
        let is_current = |address: &ServerAddress| current.as_ref() == Some(address);
        let mut chosen = named.iter().filter(|(address, votes)| 2 * votes > self.all.len() || is_current(address));
        chosen.next().map(|(address, _)| address.clone())
    }

    /// Time for the `left` sentinels that have not answered. `None` is without end.
    fn patience(&self, named: &Votes<ServerAddress>, left: usize, limit: TimeLimit) -> Option<Duration> {
        let most = named.iter().map(|(_, votes)| *votes).max().unwrap_or_default();
        let majority_is_possible = 2 * (most + left) > self.all.len();
        match (majority_is_possible, self.chosen(named).is_some()) {
            (true, false) => None,                  // nothing else to do with the time
            (true, true) => Some(limit.left() / 2), // time to connect to the current primary
            (false, true) => Some(Duration::ZERO),
            (false, false) => Some(LAST_WORDS),
        }
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<ServerAddress>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once the primary is another one than `from`. `limit`: time limit of each look-up.
    ///
    /// A primary that is cut off from its sentinels may never close a connection by itself.
    pub(super) async fn moved(&self, from: &Client, limit: Duration) {
        let from = ServerAddress::of(from);
        let changed = Notify::new();
        let watches = join_all(self.all.iter().map(|sentinel| self.watch(sentinel, &from, &changed, limit)));
        let decided = async {
            changed.notified().await;
            let mut interval = INTERVAL;
            loop {
                let connect = |client, limit| async move { Ok((connect_with(&client, limit, explain).await?, ())) };
                match self.primary(TimeLimit::new(limit), connect).await {
                    Ok((now, ..)) if ServerAddress::of(&now) != from => return,
                    Ok(_) => {}
                    // It may be temporary.
                    Err(_) => interval = INTERVAL,
                }
                sleep(INTERVAL).await;
                match timeout(interval.saturating_sub(INTERVAL), changed.notified()).await {
                    Ok(()) => interval = INTERVAL,
                    Err(_) => interval = (interval * 2).min(LONGEST_INTERVAL),
                }
            }
        };
        tokio::select! {
            () = decided => {}
            _ = watches => {}
        }
    }

    /// Notifies whenever this sentinel names another server than before.
    async fn watch(&self, sentinel: &Client, from: &ServerAddress, changed: &Notify, limit: Duration) {
        let mut last = from.clone();
        loop {
            if let Ok(mut connection) = connect_sentinel(sentinel, TimeLimit::new(limit)).await {
                while let Ok(named) = self.named(&mut connection).await {
                    if named != last {
                        last = named;
                        changed.notify_one();
                    }
                    sleep(INTERVAL).await;
                }
            }
            sleep(INTERVAL).await;
        }
    }

    /// Asks a sentinel for the primary.
    async fn named(&self, sentinel: &mut MultiplexedConnection) -> Result<ServerAddress, StoreError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let named: Option<(String, u16)> =
            question.query_async(sentinel).await.map_err(|error| explain_sentinel(&error))?;
        if let Some((host, port)) = named {
            return Ok(ServerAddress { host, port });
        }
        let known = redis::cmd("SENTINEL").arg("MASTERS").query_async(sentinel).await;
        let known: Vec<Value> = known.map_err(|error| explain_sentinel(&error))?;
        let known: Vec<_> = known.iter().filter_map(name_of).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        let unknown = StoreError::misconfigured(format!("it does not know this service; it knows: {known}"));
        Err(unknown.with_doubt(Some(Doubt::Configuration)))
    }
}

/// Name of a service.
fn name_of(service: &Value) -> Option<String> {
    let fields: std::collections::HashMap<String, String> = redis::from_redis_value_ref(service).ok()?;
    fields.get("name").cloned()
}

/// Role of a server: `master` or `slave`.
async fn role(server: &mut MultiplexedConnection) -> Result<String, StoreError> {
    let reply: Vec<Value> = redis::cmd("ROLE").query_async(server).await.map_err(|error| explain(&error))?;
    let role = reply.first().and_then(|role| redis::from_redis_value_ref(role).ok());
    role.ok_or_else(|| StoreError::unavailable("malformed reply to ROLE"))
}

async fn connect_sentinel(sentinel: &Client, limit: TimeLimit) -> Result<MultiplexedConnection, StoreError> {
    connect_with(sentinel, limit, explain_sentinel).await
}

/// Connects. Each reply may take the whole limit.
async fn connect_with(
    to: &Client,
    limit: TimeLimit,
    explain: impl Fn(&RedisError) -> StoreError,
) -> Result<MultiplexedConnection, StoreError> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(Some(limit.whole()));
    let connected = limit.within(to.get_multiplexed_async_connection_with_config(&config)).await;
    connected.map_err(|_| late(limit))?.map_err(|error| explain(&error))
}

fn late(limit: TimeLimit) -> StoreError {
    StoreError::unavailable(format!("no answer within {:?}", limit.whole()))
}

/// Describes an error, with advice on errors of sentinels.
fn explain_sentinel(error: &RedisError) -> StoreError {
    const CREDENTIALS: &str = "set the sentinels' credentials with Builder::sentinel_credentials";
    let explained = explain(error);
    let advice = match error.code() {
        _ if error.kind() == ErrorKind::AuthenticationFailed => CREDENTIALS,
        Some("NOAUTH" | "WRONGPASS") => CREDENTIALS,
        Some("ERR") if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) => {
            "it is not a sentinel"
        }
        _ => return explained,
    };
    explained.advised(advice)
}

/// The service and its sentinels.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the sentinels {}", self.service, addresses(&self.all))
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn at(port: u16) -> ServerAddress {
        ServerAddress { host: "localhost".to_owned(), port }
    }

    #[tokio::test(start_paused = true)]
    async fn sentinels_are_awaited_while_a_majority_is_possible() {
        let client = Client::open("redis://localhost").unwrap();
        let sentinels = Sentinels::new(vec![client.clone(); 3], "shop".to_owned(), client);
        let limit = TimeLimit::new(Duration::from_secs(4));
        let patience = |named: &[(ServerAddress, usize)], left| sentinels.patience(named, left, limit);
        for _ in 0..2 {
            assert_eq!(patience(&[], 2), None);
            assert_eq!(patience(&[(at(1), 1)], 1), None);
            assert_eq!(patience(&[(at(1), 1), (at(2), 1)], 1), None);
            assert_eq!(patience(&[], 1), Some(LAST_WORDS));
            assert_eq!(patience(&[(at(1), 1)], 0), Some(LAST_WORDS));
            *sentinels.lock_current() = Some(at(7));
        }
        // The current primary may be used without a majority.
        advance(Duration::from_secs(2)).await;
        assert_eq!(patience(&[(at(7), 1)], 2), Some(Duration::from_secs(1)));
        assert_eq!(patience(&[(at(1), 1), (at(7), 1)], 1), Some(Duration::from_secs(1)));
        assert_eq!(patience(&[(at(7), 1)], 0), Some(Duration::ZERO));
    }
}
