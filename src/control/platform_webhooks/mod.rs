//! Platform webhooks: deliveries of events to endpoints of organizations and projects (decision
//! 0183).
//!
//! - [`endpoint`]: an endpoint as stored, with its sealed secrets.
//! - [`queue`]: copies events of the log into the queue of each endpoint, and has the attempts.
//! - `worker`: claims endpoints with a due attempt, for one node at a time.
//! - `attempt`: makes one attempt and records it; `send` is its request.
//! - [`history`]: attempts that were made, until they are removed.

mod attempt;
pub mod endpoint;
pub mod history;
pub mod queue;
mod send;
pub mod state;
mod worker;

pub use self::worker::{pass, run};
