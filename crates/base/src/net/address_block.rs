//! Address blocks: the unit in which clients are counted and banned.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

/// Returns the network that is counted and banned for an address: the IPv4 address itself, or the
/// /64 of an IPv6 address, which one customer of a provider usually has.
pub fn address_block(address: IpAddr) -> IpNet {
    match address.to_canonical() {
        IpAddr::V4(address) => IpNet::from(IpAddr::V4(address)),
        IpAddr::V6(address) => Ipv6Net::new(address, 64).map_or_else(
            |_| IpNet::from(IpAddr::V6(address)),
            |net| IpNet::V6(net.trunc()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_counted_with_its_network() {
        for (address, counted) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ] {
            let block = address_block(address.parse().unwrap());
            assert_eq!(block.to_string(), counted);
        }
    }
}
