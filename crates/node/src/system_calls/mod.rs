//! The system calls that sandboxed programs may make.

mod common;
pub(crate) mod postgres;
pub(crate) mod services;
