//! Projects: create, show, pause, restore, restart, upgrade, delete, settings, backups, branches,
//! functions, approvals, agents, logs, usage, ingest keys, log drains, calls of databases,
//! hostname.

mod actions;
mod agents;
mod approvals;
mod backups;
mod branch;
mod branches;
mod database_calls;
mod functions;
mod hostname;
mod ingest_keys;
mod live;
mod log_drains;
mod logs;
mod new;
pub(super) mod project;
mod restores;
mod settings;
mod show;
mod upgrade;
mod usage;

pub(super) use self::{
    actions::{
        CANCEL, CONFIRM_DELETE, CONFIRM_PAUSE, CONFIRM_RESTART, DELETE, PAUSE, RESTART, RESTORE,
    },
    agents::AGENTS,
    approvals::{APPROVAL, APPROVALS, APPROVE, DENY, PROTECT},
    backups::{BACKUPS, UPDATE_SCHEDULE},
    branch::{BRANCH, CONFIRM_MERGE, MERGE},
    branches::BRANCHES,
    database_calls::DATABASE_CALLS,
    functions::FUNCTIONS,
    hostname::HOSTNAME,
    ingest_keys::{ADD_INGEST_KEY, DELETE_INGEST_KEY, INGEST_KEYS},
    live::LIVE,
    log_drains::LOG_DRAINS,
    logs::LOGS,
    new::{CREATE, NEW},
    restores::{RESTORE_BACKUP, RESTORE_TABLES, RESTORE_TO_NEW_PROJECT, REVIEW_RESTORE},
    settings::{APPLY_SETTINGS, REVIEW_SETTINGS, SETTINGS, VERSIONS},
    show::{REVEAL_KEYS, SHOW},
    upgrade::{SHOW_UPGRADE, UPGRADE},
    usage::USAGE,
};
