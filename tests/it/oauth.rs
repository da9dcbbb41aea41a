//! OAuth: applications that act for members, as they and those who attack them meet the server.

mod applications;
mod asking;
mod audience;
mod authorized;
mod consent;
mod ending;
mod exchanging;
mod flow;
mod proving;
mod races;
mod registering;
