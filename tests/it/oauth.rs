//! OAuth: authorization of applications, from the view of applications, members and attackers.

mod applications;
pub(crate) mod audience;
mod authorization;
mod authorize;
mod client_authentication;
mod consent;
mod flow;
mod organization_authorizations;
mod pages;
mod protocol_requests;
mod races;
mod registration;
mod revocation;
mod token_endpoint;
