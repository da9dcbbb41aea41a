//! Foundations without knowledge of Gantry's resources: time, identifiers, errors, the control
//! database, network and object storage.

pub mod batch_queue;
pub mod cache;
pub mod clock;
pub mod db;
pub mod error;
pub mod exported_key;
pub mod ids;
pub mod names;
pub mod net;
pub mod object_store;
pub mod sealing;
pub mod supervisor;
