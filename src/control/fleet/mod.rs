//! The nodes of an installation, and the connections between them.
//!
//! A node is a data folder with the server that holds its lease. It runs the projects in that
//! folder. Every node answers for every project: a request, a session or a connection to a service
//! that arrives at another node is passed on to the node that holds the project, over its fleet
//! port. The credentials are checked there; a node only vouches for the address of the client.
//!
//! - `node` has the rows of nodes, `register` writes that of this one.
//! - `placement` chooses the node of a new project, `rebuild` those of the projects of a lost node.
//! - `moves` moves projects that run.
//! - `holders` knows the node of each project.
//! - `authority` issues the certificates by which nodes recognize each other.
//! - `connections` opens connections to other nodes, and `fleet_port` serves those from them.
//! - `forward` passes requests of the API on.

mod authority;
pub(in crate::control) mod connections;
mod fleet_port;
mod forward;
mod forwarded_client;
mod holders;
pub mod moves;
pub mod node;
mod node_tls;
mod peer_connections;
pub mod placement;
pub mod rebuild;
mod register;
pub mod state;

pub use self::{
    fleet_port::serve,
    forward::forwarder,
    holders::unreachable_holder,
    register::{register, run},
};
