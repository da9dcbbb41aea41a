//! All settings of a project in one document: planned, applied as a whole or not at all, compared
//! with the document that was applied last, and rolled back to an earlier version.
//!
//! - `section` has the sections of a document, and the settings of each.
//! - `state` reads all settings of a project, and the result of a document.
//! - `plan` compares both, and names what restarts.
//! - `apply` puts a plan into effect. A section that its service refuses reverts the others.
//! - `history` reads earlier versions from the audit log.
//! - `drift` compares the settings with the document that was applied last.

mod apply;
mod drift;
mod history;
mod plan;
mod section;
mod state;

pub use self::{
    apply::{ApplyRequest, apply},
    drift::{Drift, DriftedSetting, drift, drift_note},
    history::{SettingsVersion, versions},
    plan::{ChangeEffect, PlannedChange, SettingsPlan, plan},
    section::Section,
    state::ProjectSettings,
};
use serde_json::{Map, Value};

/// The requested settings: a document, or those of an earlier version.
#[derive(Debug, Clone)]
pub enum RequestedSettings {
    /// Settings by section. Those that it does not name stay as they are.
    Document(Map<String, Value>),
    /// Number of a version, as in [`SettingsVersion`].
    Version(i64),
}
