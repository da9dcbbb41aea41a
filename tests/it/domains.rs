//! Names under which projects are reached.

pub(crate) mod dns;
mod hostnames;
mod vanity;
