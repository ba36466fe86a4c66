//! The builder: settings of a limiter, and its constructors.

use std::{fmt, num::NonZeroU32, time::Duration};

use crate::{
    Clock, Limiter, OnStoreError, SetupError,
    engine::{backend_kind::BackendKind, core::Engine, handle::Handles, settings::EngineSettings},
    guard::{Guard, Upstream},
    memory::Memory,
    observe,
    store::Store,
};

/// Builds a limiter from settings. Made by [`Limiter::builder`].
///
/// ```
/// use ratelimit_runtime::{Limiter, OnStoreError};
/// use std::time::Duration;
///
/// # async fn connect() -> Result<(), ratelimit_runtime::SetupError> {
/// let limiter = Limiter::builder("redis://127.0.0.1:6379")
///     .namespace("shop")
///     .deadline(Duration::from_millis(50))
///     .instances(4)
///     .on_store_error(OnStoreError::Local)
///     .build()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    url: String,
    lazy: bool,
    /// Whether the number of processes was set, and may be 0.
    has_instances: bool,
    settings: EngineSettings,
    #[cfg(feature = "redis")]
    connections: usize,
    #[cfg(feature = "redis")]
    coalescing: bool,
    #[cfg(feature = "redis")]
    certificates: crate::redis::Certificates,
    #[cfg(feature = "redis")]
    sentinel_credentials: Option<crate::redis::Credentials>,
}

/// The URL schemes of Redis stores.
const REDIS_SCHEMES: [&str; 15] = [
    "redis",
    "rediss",
    "redis+unix",
    "redis+cluster",
    "rediss+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey",
    "valkeys",
    "valkey+unix",
    "valkey+cluster",
    "valkeys+cluster",
    "valkey+sentinel",
    "valkeys+sentinel",
    "unix",
];

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            lazy: false,
            has_instances: false,
            settings: EngineSettings {
                clock: Clock::system(),
                namespace: String::new(),
                deadline: Duration::from_millis(100),
                instances: None,
                on_store_error: OnStoreError::default(),
                max_keys: 1_000_000,
                overflow_bytes: 0,
                max_waiting: 10_000,
                is_local: false,
                names_keys: false,
                #[cfg(feature = "config")]
                rules: None,
            },
            #[cfg(feature = "redis")]
            connections: 1,
            #[cfg(feature = "redis")]
            coalescing: true,
            #[cfg(feature = "redis")]
            certificates: crate::redis::Certificates::default(),
            #[cfg(feature = "redis")]
            sentinel_credentials: None,
        }
    }

    /// The deadline of a decision by the store. The default is 100 ms.
    ///
    /// When it has passed, [`Builder::on_store_error`] applies to the call. The sleep of a
    /// [`LeakyBucket`](crate::Algorithm::LeakyBucket) and the waiting of
    /// [`Limiter::acquire_within`] are not part of it.
    ///
    /// The deadline also affects other times:
    ///
    /// - An attempt to connect has 2 seconds, or the deadline if that is longer. This includes TLS
    ///   and, behind sentinels, their answers. After each attempt that timed out the time doubles,
    ///   up to 8 seconds.
    /// - A node of a cluster has half a second to report the slots. If none answers, the time doubles,
    ///   up to the deadline.
    /// - The probe of a server that was away has the deadline. Above a second, the server's return
    ///   may be noticed later than after a second.
    ///
    /// # Errors
    ///
    /// [`Builder::build`] fails if the deadline is 0.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// The number of connections that each tokio runtime of this process has to a Redis server. The
    /// default is 1.
    ///
    /// Calls use the connections in turn. One connection carries the calls of any number of callers
    /// at once. More may help on a machine of many cores, if the one task that reads and writes the
    /// connection is the bottleneck. On two cores they have shown no gain, with TLS or without.
    ///
    /// If the server allows fewer connections, calls use the open ones. The others are tried again,
    /// at most half a minute apart.
    ///
    /// # Errors
    ///
    /// [`Builder::build`] fails if the number is 0.
    #[cfg(feature = "redis")]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        self
    }

    /// The number of processes that share the limits. By default, it is not known.
    ///
    /// When the store is away, each process admits its share: the count divided by this number.
    /// If it is not known, each process admits the whole count; when that begins, the log has one
    /// warning. For a single process, set 1. See [`OnStoreError::Local`].
    ///
    /// # Errors
    ///
    /// [`Builder::build`] fails if the number is 0.
    pub fn instances(mut self, instances: u32) -> Self {
        self.settings.instances = NonZeroU32::new(instances);
        self.has_instances = true;
        self
    }

    /// The first part of all counter names, which separates the counters of several systems on one
    /// server. The default is empty. Some characters are [escaped in the
    /// names](crate::guide::redis#counters-in-redis-cli): an ACL has to name them so.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// The failure policy for calls that the store cannot decide. The default is
    /// [`OnStoreError::Local`].
    ///
    /// `on_store_error` of an attribute overrides it for its function, and a rules file overrides both.
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.settings.on_store_error = on_store_error.with_bounded_wait();
        self
    }

    /// Rules from a file, which override the rules with the same prefix in the code (feature
    /// `config`).
    #[cfg(feature = "config")]
    pub fn rules(mut self, rules: crate::config::Rules) -> Self {
        self.settings.rules = Some(rules);
        self
    }

    /// Makes refusals name the key of their call. The default is not to.
    ///
    /// [`RequestPerMinute::key`](crate::RequestPerMinute::key) has it then, and the message of the
    /// error. Each refusal allocates for it. Responses to requests, metrics and events in
    /// the log still leave the key out. A call whose rules share a prefix and not a key names none.
    ///
    /// ```
    /// # use ratelimit_runtime::{Key, Limiter, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::builder("memory://").keys_in_refusals(true).build().await.unwrap();
    /// limiter.acquire(&RULE, 4711).await.unwrap();
    /// let refused = limiter.acquire(&RULE, 4711).await.unwrap_err();
    /// assert_eq!(refused.key(), Some(&Key::new(4711)));
    /// assert!(refused.to_string().starts_with("`item` for the key `4711` is limited to 1 per minute"));
    /// # });
    /// ```
    pub fn keys_in_refusals(mut self, keys_in_refusals: bool) -> Self {
        self.settings.names_keys = keys_in_refusals;
        self
    }

    /// The clock of the memory store and of all waiting. The default is the system's.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// The largest number of counters in the memory store. The default is one million.
    ///
    /// Only counters that equal unused ones are dropped. When all are in use, calls that need a new
    /// counter are refused. With [`OnStoreError::Allow`] they are admitted, with `Wait` they wait. With 0, there is
    /// room for none.
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys;
        self
    }

    /// Memory for the calls of new keys while the memory store is [full](Builder::max_keys), in bytes. It is taken once
    /// for each of up to four different periods of rules; rules of further periods have none. The default is 0: such
    /// calls are refused.
    ///
    /// Rules with [`FixedWindow`](crate::Algorithm::FixedWindow) count new keys there, up to 1,048,575 in a
    /// period. Keys share cells, so an attacker's calls may use up the limit of an honest key. A call is
    /// refused too often, never admitted too often:
    ///
    /// - The more calls an attacker makes with such keys, the more honest calls are refused. With 64 MiB, 10
    ///   million keys with one call each got no honest call refused, also under a count of 5. Calls that use
    ///   the whole count of each of these keys get most honest calls refused. The bench `full_memory`
    ///   measures it.
    /// - A rule with a [ban](crate::Rule::with_ban) finds no room there while the store is full: its new keys follow
    ///   the failure policy. Once the store has room, a key that shares its cells with earlier calls is counted there
    ///   until these end. Above its count it is then refused, but not banned, as the calls may be those of other keys.
    /// - Periods begin at multiples of their length since 1970. The charges of the current one and of the one before
    ///   count. So a key that uses its whole count gets it in every second period only.
    /// - A refund or [`Limiter::reset`] returns nothing there, since the cells are shared.
    /// - A key leaves it after two periods without a call. Until then it is counted there, even if the store
    ///   has room.
    ///
    /// The memory is taken at the first such call, and calls of stored keys may wait for that. A size
    /// that the process cannot get is a [`SetupError`]. This is a count-min sketch (Cormode and Muthukrishnan,
    /// 2005) with conservative update (Estan and Varghese, 2002).
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule, SetupError};
    /// # use std::time::Duration;
    /// const LOGIN: Rule = Rule::new("login", 5, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::builder("memory://").max_keys(1).overflow_bytes(1 << 20).build().await?;
    /// assert!(limiter.acquire(&LOGIN, "alice").await.is_ok());
    /// assert!(limiter.acquire(&LOGIN, "bob").await.is_ok()); // without an overflow, the store is full
    /// # Ok::<_, SetupError>(()) }).unwrap();
    /// ```
    pub fn overflow_bytes(mut self, bytes: usize) -> Self {
        self.settings.overflow_bytes = bytes;
        self
    }

    /// Turns batching on or off: one round trip to a Redis server carries the decisions of several
    /// callers. The default is on.
    ///
    /// - While four round trips are under way on a tokio runtime, further decisions wait, and the
    ///   next round trip carries up to 64 different ones. Each time that 64 wait, one more round trip
    ///   begins. A decision that comes alone is sent at once.
    /// - Equal decisions of one thread travel as one, which is granted as often as fits. So do
    ///   equal decisions of all threads, if there are no others.
    /// - Each decision stands by itself. Decisions of one thread are made in the order of arrival,
    ///   and those of several threads in about that order.
    /// - In a cluster, a round trip goes to one node, with one script for each slot and algorithm.
    #[cfg(feature = "redis")]
    pub fn coalescing(mut self, coalescing: bool) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// The largest number of callers that may wait for one counter with one count, in this process. The default is
    /// 10,000.
    ///
    /// The next caller is refused, with [`Cause::Exceeded`](crate::Cause::Exceeded). A caller of several rules
    /// counts only at the counters that it has to wait for. With 0, no call waits.
    ///
    /// Under [`OnStoreError::Wait`](crate::OnStoreError::Wait) as many calls of the limiter may also
    /// wait for its store.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.settings.max_waiting = max_waiting;
        self
    }

    /// Makes [`Builder::build`] return without waiting for the server. The first call opens the
    /// connection.
    ///
    /// If the server is not there, calls are treated as in an outage; see
    /// [`Builder::on_store_error`].
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// The certificates of the certificate authorities to trust, in PEM, instead of the system's
    /// (feature `rustls`).
    #[cfg(feature = "rustls")]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// The certificate of this client and its private key, in PEM (feature `rustls`).
    #[cfg(feature = "rustls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The user and the password for the sentinels of a `redis+sentinel://` URL. The default is
    /// none.
    ///
    /// Leave the user empty if the sentinels have only a password. User and password in the URL are
    /// for the servers behind the sentinels.
    ///
    /// ```
    /// # use ratelimit_runtime::Limiter;
    /// let builder = Limiter::builder("redis+sentinel://:password@10.0.0.1,10.0.0.2,10.0.0.3/limits")
    ///     .sentinel_credentials("", "another password");
    /// ```
    #[cfg(feature = "redis")]
    pub fn sentinel_credentials(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let (user, password) = (user.into(), password.into());
        self.sentinel_credentials = Some(crate::redis::Credentials { user, password });
        self
    }

    /// Builds the limiter.
    ///
    /// On Redis, it waits for the server's first answer, unless [`Builder::lazy`] is set. It waits
    /// for up to 2 seconds, or for the deadline if that is longer. Sentinels and the server share
    /// that time. In a cluster, one node has to answer. Each node tried before it that does not
    /// answer takes as long again.
    ///
    /// # Errors
    ///
    /// A [`SetupError`]
    ///
    /// - if a setting or the URL is invalid;
    /// - if the server does not answer, unless [`Builder::lazy`] is set.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has built nothing.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`.
    #[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
    pub async fn build(self) -> Result<Limiter, SetupError> {
        if let Some(fault) = self.fault() {
            return Err(SetupError::new(fault));
        }
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("memory") if self.url == "memory://" => Ok(self.in_memory()),
            Some("memory") => Err(SetupError::new("invalid URL: nothing may follow memory://")),
            #[cfg(feature = "redis")]
            Some(scheme) if REDIS_SCHEMES.contains(&scheme) => self.on_redis().await,
            #[cfg(not(feature = "redis"))]
            Some(scheme) if REDIS_SCHEMES.contains(&scheme) => {
                Err(SetupError::new("this URL needs the feature `redis` of the crate ratelimit-runtime"))
            }
            Some(other) if other.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+') => {
                Err(SetupError::new(format!(
                    "unknown URL scheme `{other}`; use memory://, redis://, rediss://, redis+unix://, redis+cluster://, \
                     rediss+cluster://, redis+sentinel:// or rediss+sentinel://"
                )))
            }
            _ => Err(SetupError::new(
                "invalid URL; use memory://, redis://host:port, redis+unix:///path, \
                 redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service",
            )),
        }
    }

    fn in_memory(mut self) -> Limiter {
        let EngineSettings { clock, max_keys, overflow_bytes, .. } = &self.settings;
        let store = Memory::new(clock.clone(), *max_keys, *overflow_bytes);
        self.settings.is_local = true;
        Limiter::new(BackendKind::Memory(store), self.settings)
    }

    #[cfg(feature = "redis")]
    async fn on_redis(self) -> Result<Limiter, SetupError> {
        #[cfg(not(feature = "rustls"))]
        if self.url.starts_with("rediss") || self.url.starts_with("valkeys") {
            return Err(SetupError::new("TLS needs the feature `rustls` of the crate ratelimit-runtime"));
        }
        let topology =
            crate::redis::RedisTopology::new(&self.url, &self.certificates, self.sentinel_credentials.as_ref())?;
        let (deadline, connections, is_batching) = (self.settings.deadline, self.connections, self.coalescing);
        let options = crate::redis::NodeOptions { deadline, connections, is_batching };
        let store = crate::redis::Redis::new(topology, options);
        if !self.lazy {
            store.connected().await.map_err(|error| SetupError::new(error.reason()))?;
        }
        Ok(Limiter::guarded(Upstream::Redis(store), self.settings))
    }

    pub(crate) fn memory() -> Limiter {
        Self::new("memory://").in_memory()
    }

    /// A limiter in memory with this clock.
    #[cfg(feature = "client")]
    pub(crate) fn memory_with(clock: Clock) -> Limiter {
        Self::new("memory://").clock(clock).in_memory()
    }

    /// Builds the limiter on a store of your own, and ignores the URL.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a setting is invalid.
    pub fn over(self, store: impl Store) -> Result<Limiter, SetupError> {
        if let Some(fault) = self.fault() {
            return Err(SetupError::new(fault));
        }
        Ok(self.with_store(store))
    }

    /// The fault of the first invalid setting. Of a setting that was set twice, the last value counts.
    fn fault(&self) -> Option<&'static str> {
        if self.settings.deadline.is_zero() {
            return Some("the deadline is 0; give the store time to answer, for example 100 ms");
        }
        #[cfg(feature = "redis")]
        if self.connections == 0 {
            return Some("`connections` is 0; use 1 or more");
        }
        if !Memory::can_have_overflow(self.settings.overflow_bytes) {
            return Some("`overflow_bytes` is more memory than this process can get; use less, for example 64 MiB");
        }
        let has_no_instance = self.has_instances && self.settings.instances.is_none();
        has_no_instance.then_some("`instances` is 0; use the number of processes that share the limits, 1 or more")
    }

    pub(crate) fn with_store(self, store: impl Store) -> Limiter {
        Limiter::guarded(Upstream::other(store), self.settings)
    }

    pub(crate) fn without_store(self) -> Limiter {
        Limiter::new(BackendKind::None, self.settings)
    }
}

impl Limiter {
    /// A limiter that counts in process memory.
    ///
    /// It keeps up to a million counters; see [`Builder::max_keys`]. Decisions need no timer and no
    /// tokio runtime, but waiting does.
    pub fn in_memory() -> Self {
        Builder::memory()
    }

    /// A limiter on the store of the URL, with all settings at their defaults.
    ///
    /// [`Limiter::builder`] lists the URLs. Cancellation and panics are as for [`Builder::build`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the URL is invalid or the server does not answer.
    ///
    /// ```no_run
    /// # use ratelimit_runtime::{Limiter, SetupError};
    /// # async fn start() -> Result<(), SetupError> {
    /// let limiter = Limiter::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, SetupError> {
        Self::builder(url).build().await
    }

    /// A builder for a limiter on the store of the URL.
    ///
    /// - `memory://`: process memory.
    /// - `redis://user:password@host:port/database`: one Redis server, over TCP.
    /// - `redis+unix:///path/to/socket?db=1&user=..&pass=..`: one Redis server, over a Unix socket.
    /// - `redis+cluster://user:password@host:port,host:port`: a Redis Cluster. Name some of its
    ///   nodes. They know the others.
    /// - `redis+sentinel://user:password@host:port,host:port/service/database`: the primary of the
    ///   service that these sentinels name.
    /// - `rediss://..`, `rediss+cluster://..`, `rediss+sentinel://..`: the same over TLS (feature
    ///   `rustls`).
    ///
    /// User, password, database and ports are optional. The default port is 6379, and 26379 for a
    /// sentinel. `valkey` may replace `redis` in every scheme. `?protocol=resp2` selects the older
    /// protocol RESP2.
    ///
    /// All nodes of a cluster use the same user and password. In a sentinel URL, they are those of
    /// the servers. For the sentinels' own, see [`Builder::sentinel_credentials`].
    ///
    /// The limiter queries the sentinels of the URL as long as it lives, and no others. A majority
    /// of them has to name a primary before it is used. Host names are resolved for each
    /// connection, so a sentinel can be replaced by another one with the same name.
    ///
    /// A proxy has to forward all commands to one server, like `HAProxy` with `mode tcp`. Proxies
    /// that choose a server for each command are not supported, for example Envoy's Redis filter,
    /// twemproxy and redis-cluster-proxy. They choose by the keys of a command, and the scripts
    /// here have keys of several servers, or none. Their error replies for a lost server still
    /// count as an outage.
    ///
    /// An invalid URL is reported by [`Builder::build`].
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A limiter on a store of your own, with all settings at their defaults.
    ///
    /// For other settings, use [`Builder::over`].
    pub fn with_store(store: impl Store) -> Self {
        Builder::new("memory://").with_store(store)
    }

    /// A limiter that admits every call and counts nothing, for tests of code behind a limit.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::unlimited();
    /// for _ in 0..1000 {
    ///     limiter.acquire(&RULE, "alice").await?;
    /// }
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn unlimited() -> Self {
        Builder::new("memory://").without_store()
    }

    fn new(backend: BackendKind, settings: EngineSettings) -> Self {
        observe::describe();
        Self(Handles::new(Engine::new(backend, settings)))
    }

    /// A limiter on any store but memory: the guard stands in front of it.
    fn guarded(store: Upstream, settings: EngineSettings) -> Self {
        let guard = Guard::new(store, settings.namespace.clone(), settings.clock.clone(), settings.deadline);
        Self::new(BackendKind::Other(guard), settings)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
