//! The knowledge and the processes that the proxies ask for.

mod nodes;
mod postgres;
mod services;

pub use self::{
    postgres::postgres_proxy,
    services::{open_function_gateway, service_proxy},
};
