//! The primary that sentinels name.
//!
//! All of them are asked at once. The server that a majority names is taken, if it says itself that it is a primary: a sentinel
//! that is cut off, or has not heard of a failover yet, names the old one. Without a majority the current primary stays, if a
//! sentinel names it.

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
    address::{Address, addresses},
    backoff::TimeLimit,
    quorum::{Votes, are_mostly_misconfigured, quorum},
    reply::explain,
};
use crate::store::StoreError;

/// Between two looks at whether the primary is still the same.
const INTERVAL: Duration = Duration::from_millis(500);
/// Between two looks at what sentinels have said before, which is a stale one that goes on naming another.
const LONGEST_INTERVAL: Duration = Duration::from_secs(8);

/// How long the others are waited for where no majority can come any more. One of them may name the
/// current primary, and the error tells what they say.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// The sentinels of a service.
pub(crate) struct Sentinels {
    all: Vec<Client>,
    service: String,
    /// A server of the service, but for its address.
    server: Client,
    /// The primary that was taken last.
    current: Mutex<Option<Address>>,
}

impl Sentinels {
    pub(super) fn new(all: Vec<Client>, service: String, server: Client) -> Self {
        Self { all, service, server, current: Mutex::default() }
    }

    /// The primary as it is reached now, and the connection over which it said that it is the
    /// primary.
    ///
    /// `connect` opens a connection to a server, with anything else that belongs to it.
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
            named.map_err(|error| (Address::of(sentinel), error))
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
        // An address may be long gone, and something else be in its place.
        let mut misconfigured =
            chosen.is_some() || named.is_empty() && are_mostly_misconfigured(failed.iter().map(|(_, error)| error));
        let mut credentials = failed.iter().any(|(_, error)| error.is_about_credentials());
        if let Some(address) = chosen {
            let client = address.client(&self.server)?;
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
                    reasons.push(format!("{address} is named, and says it is a {role}"));
                }
                Err(error) => {
                    misconfigured &= error.misconfigured;
                    credentials |= error.is_about_credentials();
                    reasons.push(format!("{address} is named: {error}"));
                }
            }
        }
        reasons.extend(failed.into_iter().map(|(address, error)| format!("{address}: {error}")));
        let reason = format!("no primary of the service `{}` is found: {}", self.service, reasons.join("; "));
        Err(if !misconfigured {
            StoreError::unavailable(reason)
        } else if credentials {
            StoreError::misconfigured(reason).about_credentials()
        } else {
            StoreError::misconfigured(reason)
        })
    }

    /// The server to take, of those named and by how many sentinels.
    fn chosen(&self, named: &[(Address, usize)]) -> Option<Address> {
        let current = self.lock_current();
        let is_current = |address: &Address| current.as_ref() == Some(address);
        let mut chosen = named.iter().filter(|(address, votes)| 2 * votes > self.all.len() || is_current(address));
        chosen.next().map(|(address, _)| address.clone())
    }

    /// How long the sentinels are waited for that have not answered: so many are `left`.
    fn patience(&self, named: &Votes<Address>, left: usize, limit: TimeLimit) -> Option<Duration> {
        let most = named.iter().map(|(_, votes)| *votes).max().unwrap_or_default();
        let majority_may_come = 2 * (most + left) > self.all.len();
        match (majority_may_come, self.chosen(named).is_some()) {
            (true, false) => None,                  // there is nothing else to do with the time
            (true, true) => Some(limit.left() / 2), // the current primary must be connected to as well
            (false, true) => Some(Duration::ZERO),
            (false, false) => Some(LAST_WORDS),
        }
    }

    fn lock_current(&self) -> MutexGuard<'_, Option<Address>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once the primary is another one than this.
    ///
    /// A primary that was cut off from its sentinels may never end a connection by itself. `limit`:
    /// how long it may take to look at another one.
    pub(super) async fn moved(&self, from: &Client, limit: Duration) {
        let from = Address::of(from);
        let news = Notify::new();
        let watches = join_all(self.all.iter().map(|sentinel| self.watch(sentinel, &from, &news, limit)));
        let decided = async {
            news.notified().await;
            let mut interval = INTERVAL;
            loop {
                let look = |client, limit| async move { Ok((connect(&client, limit, explain).await?, ())) };
                match self.primary(TimeLimit::new(limit), look).await {
                    Ok((now, ..)) if Address::of(&now) != from => return,
                    Ok(_) => {}
                    // Maybe only for the moment.
                    Err(_) => interval = INTERVAL,
                }
                sleep(INTERVAL).await;
                match timeout(interval.saturating_sub(INTERVAL), news.notified()).await {
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

    /// Tells whenever this sentinel names another server than before.
    async fn watch(&self, sentinel: &Client, from: &Address, news: &Notify, limit: Duration) {
        let mut last = from.clone();
        loop {
            if let Ok(mut connection) = connect_sentinel(sentinel, TimeLimit::new(limit)).await {
                while let Ok(named) = self.named(&mut connection).await {
                    if named != last {
                        last = named;
                        news.notify_one();
                    }
                    sleep(INTERVAL).await;
                }
            }
            sleep(INTERVAL).await;
        }
    }

    /// What a sentinel says.
    async fn named(&self, sentinel: &mut MultiplexedConnection) -> Result<Address, StoreError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let named: Option<(String, u16)> =
            question.query_async(sentinel).await.map_err(|error| explain_sentinel(&error))?;
        if let Some((host, port)) = named {
            return Ok(Address { host, port });
        }
        let known = redis::cmd("SENTINEL").arg("MASTERS").query_async(sentinel).await;
        let known: Vec<Value> = known.map_err(|error| explain_sentinel(&error))?;
        let known: Vec<_> = known.iter().filter_map(name_of).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(StoreError::misconfigured(format!("it does not know this service; the services it knows: {known}")))
    }
}

/// The name among the fields of a service.
fn name_of(service: &Value) -> Option<String> {
    let fields: std::collections::HashMap<String, String> = redis::from_redis_value_ref(service).ok()?;
    fields.get("name").cloned()
}

/// `master` or `slave`, in the server's words.
async fn role(server: &mut MultiplexedConnection) -> Result<String, StoreError> {
    let reply: Vec<Value> = redis::cmd("ROLE").query_async(server).await.map_err(|error| explain(&error))?;
    let role = reply.first().and_then(|role| redis::from_redis_value_ref(role).ok());
    role.ok_or_else(|| StoreError::unavailable("its reply to ROLE is not what ROLE returns"))
}

async fn connect_sentinel(sentinel: &Client, limit: TimeLimit) -> Result<MultiplexedConnection, StoreError> {
    connect(sentinel, limit, explain_sentinel).await
}

/// A connection whose answers may take as long as all of the limit.
async fn connect(
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

/// With what to do about what only sentinels say.
fn explain_sentinel(error: &RedisError) -> StoreError {
    const CREDENTIALS: &str = "those of the sentinels are set by Builder::sentinel_credentials";
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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn at(port: u16) -> Address {
        Address { host: "localhost".to_owned(), port }
    }

    #[tokio::test(start_paused = true)]
    async fn as_long_as_a_majority_may_come_it_is_waited_for() {
        let client = Client::open("redis://localhost").unwrap();
        let sentinels = Sentinels::new(vec![client.clone(); 3], "shop".to_owned(), client);
        let limit = TimeLimit::new(Duration::from_secs(4));
        let patience = |named: &[(Address, usize)], left| sentinels.patience(named, left, limit);
        for _ in 0..2 {
            assert_eq!(patience(&[], 2), None);
            assert_eq!(patience(&[(at(1), 1)], 1), None);
            assert_eq!(patience(&[(at(1), 1), (at(2), 1)], 1), None);
            assert_eq!(patience(&[], 1), Some(LAST_WORDS));
            assert_eq!(patience(&[(at(1), 1)], 0), Some(LAST_WORDS));
            *sentinels.lock_current() = Some(at(7));
        }
        // The current one may be taken without a majority.
        advance(Duration::from_secs(2)).await;
        assert_eq!(patience(&[(at(7), 1)], 2), Some(Duration::from_secs(1)));
        assert_eq!(patience(&[(at(1), 1), (at(7), 1)], 1), Some(Duration::from_secs(1)));
        assert_eq!(patience(&[(at(7), 1)], 0), Some(Duration::ZERO));
    }
}
