//! Networks of IP addresses.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use crate::SetupError;

/// Networks of IP addresses in CIDR notation: trusted proxies, or clients without a limit.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address.
///
/// ```
/// use ratelimit_runtime::web::Networks;
///
/// let inside = Networks::parse(["10.0.0.0/8", "2001:db8::/32", "192.0.2.1"])?;
/// assert!(inside.contains("10.1.2.3".parse().unwrap()));
/// assert!(!inside.contains("192.0.2.2".parse().unwrap()));
///
/// let error = Networks::parse(["10.0.0.0/33"]).unwrap_err();
/// assert_eq!(error.to_string(), "`10.0.0.0/33` is no network; write it as an address and a prefix: 10.0.0.0/8");
/// # Ok::<_, ratelimit_runtime::SetupError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Networks(Arc<[IpNet]>);

impl Networks {
    /// Parses networks. An address without a prefix is a network of this address alone. Bits behind
    /// the prefix are ignored.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] that names the first text that is no network.
    pub fn parse<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, SetupError> {
        let parse = |text: T| {
            let text = text.as_ref().trim();
            let network = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| IpNet::from(ip.to_canonical())));
            network.map_err(|_| {
                let fix = "write it as an address and a prefix: 10.0.0.0/8";
                SetupError::new(format!("`{text}` is no network; {fix}"))
            })
        };
        networks.into_iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Whether one of the networks contains the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|network| network.contains(&ip))
    }
}
