//! The Data API: PostgREST with a configuration and a key set per project.
//!
//! The key set is written by `key_set` from typed keys only: PostgREST takes a text that is no
//! key set for a symmetric secret. After each load, `KeySetCheck` proves that the new set is in
//! use and that its text is no secret.

pub(in crate::control::services) mod process;
pub(in crate::control::services) mod reload;
pub(in crate::control::services) mod settings;
pub(in crate::control) mod stored_settings;

pub(in crate::control) use self::{settings::write, stored_settings::stored};
pub use self::{
    settings::{API_SETTINGS, RestSettingsUpdate, get, update},
    stored_settings::RestSettings,
};
