//! Ports of programs that do not listen on Unix sockets.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    ops::RangeInclusive,
    sync::Arc,
};

use gantry_base::clock::Entropy;
use parking_lot::Mutex;

/// The ports of instances: below those that the kernel gives to clients.
const PORTS: RangeInclusive<u16> = 23_000..=26_999;

/// The ports that instances of this process have.
#[derive(Debug, Clone, Default)]
pub struct PortTable(Arc<Mutex<BTreeSet<u16>>>);

/// A port that no other instance of this process gets. Released on drop.
#[derive(Debug)]
pub struct ReservedPort {
    /// The number.
    pub port: u16,
    table: PortTable,
}

impl Drop for ReservedPort {
    fn drop(&mut self) {
        self.table.0.lock().remove(&self.port);
    }
}

impl PortTable {
    /// Reserves a port on which no process listens. `None`: all are taken.
    pub fn reserve(&self, entropy: &Entropy) -> Option<ReservedPort> {
        let (first, count) = (*PORTS.start(), *PORTS.end() - *PORTS.start() + 1);
        let offset = u16::from_le_bytes(entropy.bytes()) % count;
        (0..count)
            .map(|step| first + (offset + step) % count)
            .find_map(|port| {
                let reserved = self.reserve_known(port)?;
                // Another program of this machine may listen on it.
                TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
                Some(reserved)
            })
    }

    /// Reserves several ports. `None`: too few are free.
    pub fn reserve_all(&self, entropy: &Entropy, count: u8) -> Option<Vec<ReservedPort>> {
        (0..count).map(|_| self.reserve(entropy)).collect()
    }

    /// Reserves the ports of a process that runs. `None`: another process has one.
    pub fn reserve_all_known(&self, ports: &[u16]) -> Option<Vec<ReservedPort>> {
        ports.iter().map(|port| self.reserve_known(*port)).collect()
    }

    /// Reserves the port of a process that runs.
    pub fn reserve_known(&self, port: u16) -> Option<ReservedPort> {
        self.0.lock().insert(port).then(|| ReservedPort {
            port,
            table: self.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_reserved_once_until_it_is_released() {
        let (table, entropy) = (PortTable::default(), Entropy::seeded(1));
        let first = table.reserve(&entropy).unwrap();
        let port = first.port;
        assert!(PORTS.contains(&port));
        assert!(table.reserve_known(port).is_none());
        // The same randomness leads to the next port.
        let second = table.reserve(&Entropy::seeded(1)).unwrap();
        assert_ne!(second.port, port);
        drop(first);
        assert!(table.reserve_known(port).is_some());
    }

    #[test]
    fn port_of_another_program_is_left() {
        let table = PortTable::default();
        let port = table.reserve(&Entropy::seeded(2)).unwrap().port;
        let Ok(_other) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else {
            return;
        };
        let reserved = table.reserve(&Entropy::seeded(2)).unwrap();
        assert_ne!(reserved.port, port);
    }
}
