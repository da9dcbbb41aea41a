//! The TCP ports that functions may connect to on other machines.

use std::{fmt, str::FromStr};

use gantry_base::ids::Malformed;

/// Ports of web servers, mail servers and databases.
const DEFAULT: [u16; 6] = [80, 443, 465, 587, 5432, 6543];
/// Largest number of ports.
const PORTS_MAX: usize = 64;
/// The option value without ports.
const NONE: &str = "none";

/// A list of ports. If it is empty, functions get no sockets of the internet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressPorts(Vec<u16>);

impl Default for EgressPorts {
    fn default() -> Self {
        Self(DEFAULT.to_vec())
    }
}

impl EgressPorts {
    /// The ports.
    pub fn as_slice(&self) -> &[u16] {
        &self.0
    }
}

impl fmt::Display for EgressPorts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        let ports: Vec<String> = self.0.iter().map(u16::to_string).collect();
        f.write_str(&ports.join(","))
    }
}

impl FromStr for EgressPorts {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        const EXPECTED: Malformed = Malformed("at most 64 ports separated by commas, or none");
        if text == NONE {
            return Ok(Self(Vec::new()));
        }
        let parse = |port: &str| port.trim().parse().ok().filter(|port| *port > 0);
        let ports: Option<Vec<u16>> = text.split(',').map(parse).collect();
        let ports = ports.filter(|ports| ports.len() <= PORTS_MAX);
        ports.map(Self).ok_or(EXPECTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_value_is_a_list_or_none() {
        for text in ["none", "443", "80,443,465,587,5432,6543"] {
            assert_eq!(text.parse::<EgressPorts>().unwrap().to_string(), text);
        }
        assert_eq!(
            EgressPorts::default().to_string(),
            "80,443,465,587,5432,6543"
        );
        assert!("none".parse::<EgressPorts>().unwrap().as_slice().is_empty());
        let many = vec!["1"; PORTS_MAX + 1].join(",");
        for text in ["", "0", "65536", "80,", "http", "none,80", &many] {
            assert!(text.parse::<EgressPorts>().is_err(), "{text}");
        }
    }
}
