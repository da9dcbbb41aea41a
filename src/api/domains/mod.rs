//! Operations on a project's vanity subdomain and custom hostname.

pub mod hostnames;
pub mod operations;
