//! Upgrades a cluster to another major version, beside the original (decision 0134).
//!
//! A copy of the stopped cluster is upgraded by `pg_upgrade`, started in quarantine, checked and
//! stopped in a folder of its own. It gets its place by renames as the last steps; the original is
//! only moved. Each state of the folders of a project has one next step:
//!
//! | `data` | `upgrade-<n>/data` | `before-<n>/data` | Next step |
//! |---|---|---|---|
//! | there | | | build the upgraded cluster, and rename it to `upgrade-<n>` |
//! | there | there | | rename `data` to `before-<n>/data` |
//! | | there | there | rename `upgrade-<n>/data` to `data` |
//! | there | | there | none: the cluster is upgraded |

mod build;
mod checks;
mod definitions;
mod launch;
mod output;
mod run;

pub use self::{
    checks::{UpgradeBlockers, UpgradeSupport},
    launch::{UpgradeLaunchPlan, launch},
    run::{UpgradeSpec, UpgradeStep},
};
