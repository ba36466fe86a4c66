//! Settings of a limiter, and its constructors.

use std::{fmt, num::NonZeroU32, time::Duration};

use crate::{
    Clock, Limiter, OnStoreError, SetupError,
    engine::{
        core::{BackendKind, Engine},
        handle::Handles,
        settings::EngineSettings,
    },
    guard::{Guard, Upstream},
    memory::Memory,
    observe,
    store::Store,
};

/// Settings for a limiter; from [`Limiter::builder`].
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
    instances: Option<NonZeroU32>,
    fault: Option<&'static str>,
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

/// Those of URLs that lead to Redis.
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
            instances: None,
            fault: None,
            settings: EngineSettings {
                clock: Clock::system(),
                namespace: String::new(),
                deadline: Duration::from_millis(100),
                instances: 1,
                on_store_error: OnStoreError::default(),
                max_keys: 1_000_000,
                max_waiting: 10_000,
                is_local: false,
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

    /// How long a decision of the store may take before the call is treated as
    /// [`Builder::on_store_error`] says. 100 ms if not set.
    ///
    /// The sleep of a [`LeakyBucket`](crate::Algorithm::LeakyBucket) and the waiting of [`Limiter::acquire_within`] are not part of it. A deadline above
    /// a second also means that a server that is back may go unnoticed for longer than a second: it is asked, and given so long to answer.
    ///
    /// A deadline above 2 seconds is also the time that a connection may take, with TLS and, behind
    /// sentinels, with their answers. It is 2 seconds otherwise; after each attempt that ran out of
    /// it twice as long, up to 8 seconds. A node of a cluster has half a second to tell who has which
    /// slots, or a deadline that is longer.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        if deadline.is_zero() {
            self.fault = Some("the deadline is 0; give the store some time to answer, 100 ms say");
        }
        self
    }

    /// How many connections each tokio runtime of this process has to a Redis server; calls take them in turn. 1 if not set.
    ///
    /// One carries as many calls at once as there are callers. More may help where the one task that reads and writes it is what
    /// keeps others waiting, on a machine of many cores; on two cores they have shown no gain, with TLS or without.
    ///
    /// If the server allows fewer, calls use those that are open. The others are tried again, up to half a minute apart.
    #[cfg(feature = "redis")]
    pub fn connections(mut self, connections: usize) -> Self {
        self.connections = connections;
        if connections == 0 {
            self.fault = Some("connections is 0; a server is reached by 1 or more");
        }
        self
    }

    /// How many processes share the limits. When the store is away, each admits its share: the count divided by this.
    /// 1 if not set, so that each of them would admit the whole count.
    pub fn instances(mut self, instances: u32) -> Self {
        self.instances = NonZeroU32::new(instances);
        if self.instances.is_none() {
            self.fault = Some("instances is 0; say how many processes share the limits, 1 or more");
        }
        self
    }

    /// Put in front of every counter's name, to keep the counters of several systems on one server apart.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// What happens to a call when the store cannot decide, unless its function says otherwise.
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.settings.on_store_error = on_store_error;
        self
    }

    /// What a file says of rules, in place of what the code says (feature `config`).
    #[cfg(feature = "config")]
    pub fn rules(mut self, rules: crate::config::Rules) -> Self {
        self.settings.rules = Some(rules);
        self
    }

    /// The clock of the memory store and of all waiting.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.settings.clock = clock.into();
        self
    }

    /// How many counters the memory store holds at most. One million if not set.
    ///
    /// Only counters equal to unused ones are ever dropped. When every one is in use, calls that need a new one
    /// are refused, or let through under [`OnStoreError::Allow`].
    pub fn max_keys(mut self, max_keys: usize) -> Self {
        self.settings.max_keys = max_keys;
        self
    }

    /// Whether calls to a Redis server carry the decisions of several callers. They do if not set.
    ///
    /// While four calls to a server are under way on a tokio runtime, further decisions gather, and the next call carries up to 64
    /// different ones; equal ones of one thread travel as one, that is granted as often as fits, and so do those of all threads if there are no others. Each is decided by itself: those of one thread in the
    /// order of arrival, those of several in about that order. A decision that comes alone goes at once. In a cluster a call goes to one slot.
    #[cfg(feature = "redis")]
    pub fn coalescing(mut self, coalescing: bool) -> Self {
        self.coalescing = coalescing;
        self
    }

    /// How many callers may wait for one counter in this process. 10,000 if not set; the next one is refused.
    ///
    /// A caller of several rules counts only at the counters that hold it up.
    pub fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.settings.max_waiting = max_waiting;
        self
    }

    /// Do not wait for the server in [`Builder::build`]. The first call opens the connection; a server that is
    /// not there is met as one that went away.
    pub fn lazy(mut self) -> Self {
        self.lazy = true;
        self
    }

    /// Certificates, in PEM, of those who may vouch for the server, instead of the system's (feature `rustls`).
    #[cfg(feature = "rustls")]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authority = Some(pem.into());
        self
    }

    /// This client's certificate and its key, in PEM (feature `rustls`).
    #[cfg(feature = "rustls")]
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The user and the password that the sentinels of a `redis+sentinel://` ask for. An empty user where they have only a password;
    /// none of both if not set. Those in the URL are for the servers behind them.
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

    /// The limiter.
    ///
    /// On Redis, unless [`Builder::lazy`], this waits for the server's first answer, for up to 2
    /// seconds, or for the deadline if that is longer. Sentinels and the server share that time. Of
    /// a cluster one node has to answer; another that does not holds it up for as long again.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a setting or the URL is wrong or, unless [`Builder::lazy`], the server does not answer.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`.
    #[cfg_attr(not(feature = "redis"), allow(clippy::unused_async))]
    pub async fn build(self) -> Result<Limiter, SetupError> {
        if let Some(fault) = self.fault {
            return Err(SetupError::new(fault));
        }
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("memory") if self.url == "memory://" => Ok(self.in_memory()),
            Some("memory") => Err(SetupError::new("nothing may follow memory://")),
            #[cfg(feature = "redis")]
            Some(scheme) if REDIS_SCHEMES.contains(&scheme) => self.on_redis().await,
            #[cfg(not(feature = "redis"))]
            Some(scheme) if REDIS_SCHEMES.contains(&scheme) => {
                Err(SetupError::new("this URL needs the feature `redis` of ratelimit-runtime"))
            }
            Some(other) if other.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+') => {
                Err(SetupError::new(format!(
                    "unknown scheme `{other}`; use memory://, redis://, rediss://, redis+unix://, redis+cluster://, \
                     rediss+cluster://, redis+sentinel:// or rediss+sentinel://"
                )))
            }
            _ => Err(SetupError::new(
                "this is not a URL; write memory://, redis://host:port, redis+unix:///path, \
                 redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/service",
            )),
        }
    }

    fn in_memory(mut self) -> Limiter {
        let store = Memory::new(self.settings.clock.clone(), self.settings.max_keys);
        self.settings.is_local = true;
        Limiter::new(BackendKind::Memory(store), self.settings)
    }

    #[cfg(feature = "redis")]
    async fn on_redis(mut self) -> Result<Limiter, SetupError> {
        #[cfg(not(feature = "rustls"))]
        if self.url.starts_with("rediss") || self.url.starts_with("valkeys") {
            return Err(SetupError::new("TLS needs the feature `rustls` of ratelimit-runtime"));
        }
        let topology =
            crate::redis::RedisTopology::new(&self.url, &self.certificates, self.sentinel_credentials.as_ref())?;
        let name = topology.to_string();
        let (deadline, connections, coalescing) = (self.settings.deadline, self.connections, self.coalescing);
        let settings = crate::redis::NodeOptions { deadline, connections, coalescing };
        let store = crate::redis::Redis::new(topology, settings);
        if !self.lazy {
            store.connected().await.map_err(|error| SetupError::new(error.reason()))?;
        }
        match self.instances {
            Some(instances) => self.settings.instances = instances.get().into(),
            None if self.settings.on_store_error == OnStoreError::Local => tracing::warn!(
                server = name,
                "the number of processes is not set: while Redis is away each will admit whole limits; see Builder::instances"
            ),
            None => {}
        }
        Ok(Limiter::asking(Upstream::Redis(store), self.settings))
    }

    pub(crate) fn memory() -> Limiter {
        Self::new("memory://").in_memory()
    }

    /// The limiter on a store of your own, whatever the URL.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if a setting is wrong.
    pub fn over(mut self, store: impl Store) -> Result<Limiter, SetupError> {
        if let Some(fault) = self.fault {
            return Err(SetupError::new(fault));
        }
        self.settings.instances = self.instances.map_or(1, |instances| instances.get().into());
        Ok(self.with_store(store))
    }

    pub(crate) fn with_store(self, store: impl Store) -> Limiter {
        Limiter::asking(Upstream::other(store), self.settings)
    }

    pub(crate) fn without_store(self) -> Limiter {
        Limiter::new(BackendKind::None, self.settings)
    }
}

impl Limiter {
    /// A limiter that counts in this process's memory.
    ///
    /// It holds up to a million counters. Decisions take no timer and no runtime; waiting does.
    pub fn in_memory() -> Self {
        Builder::memory()
    }

    /// A limiter on the store the URL names, with every setting at its default. See [`Limiter::builder`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the URL is wrong or the server does not answer.
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

    /// EngineSettings for a limiter on the store the URL names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory://` | this process |
    /// | `redis://user:password@host:port/database` | one Redis server, over TCP |
    /// | `rediss://..` | the same, over TLS (feature `rustls`) |
    /// | `redis+unix:///path/to/socket?db=1&user=..&pass=..` | the same, over a unix socket |
    /// | `redis+cluster://user:password@host:port,host:port` | a Redis Cluster; some of its nodes, which know the others |
    /// | `redis+sentinel://user:password@host:port,host:port/service/database` | the primary of the service that these sentinels name |
    /// | `rediss+cluster://..`, `rediss+sentinel://..` | the same two, over TLS (feature `rustls`) |
    ///
    /// User, password and database may be left out, and ports: then 6379, and 26379 for a sentinel. `valkey` may stand for `redis`
    /// everywhere. `?protocol=resp2` makes connections speak the older protocol.
    ///
    /// All nodes of a cluster take the same user and password. Those of a URL of sentinels are the servers'; for what the sentinels
    /// themselves ask see [`Builder::sentinel_credentials`].
    ///
    /// The sentinels of the URL are asked for as long as the limiter lives, and no others. A majority of
    /// them has to name a primary before it is used. Host names are looked up for each connection, so a
    /// sentinel can be replaced by another one under the same name.
    ///
    /// A proxy has to pass all commands on to one server, as `HAProxy` does with `mode tcp`. Proxies that
    /// choose a server for each command are not supported: they do so by the keys, and scripts here have
    /// keys of several servers, or none. Among these are Envoy's Redis filter, twemproxy and
    /// redis-cluster-proxy. Their error replies for a lost server count as an outage all the same.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A limiter on a store of your own.
    pub fn with_store(store: impl Store) -> Self {
        Builder::new("memory://").with_store(store)
    }

    /// A limiter that lets every call through and counts nothing, for tests of what is behind a limit.
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

    /// On a store that has to be asked.
    fn asking(store: Upstream, settings: EngineSettings) -> Self {
        let guard = Guard::new(store, settings.clock.clone(), settings.deadline);
        Self::new(BackendKind::Other(guard), settings)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).finish_non_exhaustive()
    }
}
