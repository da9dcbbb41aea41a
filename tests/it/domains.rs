//! Names under which projects are reached.

mod dns;
mod hostnames;
mod vanity;
