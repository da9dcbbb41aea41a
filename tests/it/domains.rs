//! Vanity subdomains and custom hostnames.

mod blocked;
pub(crate) mod dns;
mod hostnames;
mod vanity;
