//! The addresses of the public internet, by the IANA registries of special-purpose addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns whether an address is assigned to the public internet. Addresses that embed an IPv4
/// address are judged by it.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Returns the IPv4 address to which a gateway delivers packets for an IPv6 address: mapped
/// (RFC 4291), NAT64 (RFC 6052), 6to4 (RFC 3056) and Teredo (RFC 4380).
pub(super) fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let of = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => Some(of(high, low)),
        [0x2001, 0, .., high, low] => Some(of(!high, !low)),
        _ => None,
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = matches!(
        (a, b, c),
        // This network, private, loopback, multicast and reserved.
        (0 | 10 | 127 | 224.., _, _)
            // Shared between a provider and its customers.
            | (100, 64..=127, _)
            // Link-local, with the metadata services of clouds.
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 168, _)
            // Protocol assignments, documentation, the relays of 6to4, and benchmarks.
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (198, 51, 100)
            | (203, 0, 113)
            | (198, 18 | 19, _)
    );
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        // NAT64 and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0x2002, ..] => {
            embedded_v4(address.into()).is_some_and(is_public_v4)
        }
        // Teredo, benchmarks and other protocol assignments, and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Global unicast addresses.
        [first, ..] => (0x2000..=0x3fff).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;

    /// Blocks of the registries that are not for the public internet, as published: IPv4 and IPv6
    /// special-purpose addresses, multicast, and the addresses outside of global unicast.
    const SPECIAL: &str = "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 \
        172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 \
        198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 \
        ::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 3fff::/20";
    static BLOCKS: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
        let blocks = SPECIAL.split_whitespace();
        blocks.map(|block| block.parse().unwrap()).collect()
    });

    /// The rule in the words of the registries: outside of all blocks. Addresses of the gateways
    /// NAT64 and 6to4 are judged by the IPv4 address in their text.
    fn is_public_by_registry(address: IpAddr) -> bool {
        let bits = |address: Ipv6Addr| u128::from(address);
        let v4 = |bits: u128| Ipv4Addr::from(u32::try_from(bits & 0xffff_ffff).unwrap());
        let judged = match address {
            IpAddr::V6(v6) if bits(v6) >> 32 == 0x0064_ff9b << 64 => v4(bits(v6)).into(),
            IpAddr::V6(v6) if bits(v6) >> 112 == 0x2002 => v4(bits(v6) >> 80).into(),
            other => other,
        };
        !BLOCKS.iter().any(|block| block.contains(&judged))
    }

    /// Addresses near the ends of the blocks, and any others.
    fn addresses() -> impl Strategy<Value = IpAddr> {
        let near = (0..BLOCKS.len(), any::<bool>(), 0..3_u128, any::<bool>()).prop_map(
            |(block, last, distance, below)| {
                let block = BLOCKS[block];
                let end = if last {
                    block.broadcast()
                } else {
                    block.network()
                };
                match end {
                    IpAddr::V4(end) => {
                        let (end, distance) = (u32::from(end), u32::try_from(distance).unwrap());
                        let moved = if below {
                            end.wrapping_sub(distance)
                        } else {
                            end.wrapping_add(distance)
                        };
                        IpAddr::from(Ipv4Addr::from(moved))
                    }
                    IpAddr::V6(end) => {
                        let end = u128::from(end);
                        let moved = if below {
                            end.wrapping_sub(distance)
                        } else {
                            end.wrapping_add(distance)
                        };
                        IpAddr::from(Ipv6Addr::from(moved))
                    }
                }
            },
        );
        let v4 = any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from(bits)));
        let v6 = any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from(bits)));
        let unicast =
            any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from((bits >> 3) | 1 << 125)));
        let gateway = (any::<u32>(), any::<bool>()).prop_map(|(v4, is_nat64)| {
            let v4 = u128::from(v4);
            let bits = if is_nat64 {
                0x0064_ff9b << 96 | v4
            } else {
                0x2002 << 112 | v4 << 80
            };
            IpAddr::from(Ipv6Addr::from(bits))
        });
        prop_oneof![near, v4, v6, unicast, gateway]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn address_is_public_as_the_registries_say(address in addresses()) {
            prop_assert_eq!(is_public(address), is_public_by_registry(address), "{}", address);
        }

        #[test]
        fn embedded_address_is_read_from_each_notation(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from(bits);
            let [a, b, c, d] = v4.octets();
            let high = u16::from_be_bytes([a, b]);
            let low = u16::from_be_bytes([c, d]);
            for text in [
                format!("::ffff:{v4}"),
                format!("64:ff9b::{v4}"),
                format!("2002:{high:x}:{low:x}::1"),
                format!("2001:0:5:6:7:8:{:x}:{:x}", !high, !low),
            ] {
                let address: IpAddr = text.parse().unwrap();
                prop_assert_eq!(embedded_v4(address), Some(v4), "{}", text);
            }
        }
    }
}
