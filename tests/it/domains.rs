//! Names under which projects are reached.

mod vanity;
