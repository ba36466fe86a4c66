//! Networks of IP addresses.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;

use crate::SetupError;

/// Networks of IP addresses in CIDR notation: trusted proxies, or clients without a limit.
///
/// An IPv4 address that is mapped into IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address, and so
/// does a network of such addresses: `::ffff:10.0.0.0/104` is `10.0.0.0/8`.
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
    /// A [`SetupError`] that names the first text that is no network, or of which only a part is mapped
    /// from IPv4, such as `::ffff:0.0.0.0/90`.
    pub fn parse<T: AsRef<str>>(networks: impl IntoIterator<Item = T>) -> Result<Self, SetupError> {
        let parse = |text: T| {
            let text = text.as_ref().trim();
            let network = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| IpNet::from(ip)));
            network.ok().and_then(canonical).ok_or_else(|| {
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

/// The IPv4 network of mapped addresses, or else the network as it is. `None` for an address of the one
/// kind in a network of both: it would match none of the other.
fn canonical(network: IpNet) -> Option<IpNet> {
    const MAPPED_BITS: u8 = 96;
    match network.addr().to_canonical() {
        IpAddr::V4(ip) if network.addr().is_ipv6() => {
            let prefix = network.prefix_len().checked_sub(MAPPED_BITS)?;
            IpNet::new(ip.into(), prefix).ok()
        }
        _ => Some(network),
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_mapped_addresses_is_one_of_ipv4() {
        for (network, inside, outside) in [
            ("::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"),
            ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", "::ffff:11.1.2.3"),
            ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("::ffff:10.1.2.3/128", "10.1.2.3", "10.1.2.4"),
            ("::ffff:0:0/96", "10.1.2.3", "2001:db8::1"),
            ("::/0", "2001:db8::1", "10.1.2.3"),
        ] {
            let networks = Networks::parse([network]).unwrap();
            assert!(networks.contains(inside.parse().unwrap()), "{inside} in {network}");
            assert!(!networks.contains(outside.parse().unwrap()), "{outside} in {network}");
        }
        let error = Networks::parse(["::ffff:0.0.0.0/90"]).unwrap_err().to_string();
        assert!(error.starts_with("`::ffff:0.0.0.0/90` is no network"), "{error}");
    }
}
