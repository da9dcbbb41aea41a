//! The system calls that sandboxed programs may make.

pub(crate) mod postgres;
pub(crate) mod services;
