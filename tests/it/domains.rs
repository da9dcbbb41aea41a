//! Vanity subdomains and custom hostnames.

pub(crate) mod dns;
mod hostnames;
mod vanity;
