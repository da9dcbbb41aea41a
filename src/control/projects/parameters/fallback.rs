//! Settings of services that were changed together with those of the server: kept until the server
//! has started, and restored if it does not start (decision 0139).
//!
//! The reconciler restores them in the transaction that restores the server's settings, so the end
//! of the process that changed them is harmless.

use gantry_base::ids::ProjectId;
use tokio_postgres::Transaction;

use crate::platform::error::{Context, Error};

/// Rows of all sections. Absent rows are null.
macro_rules! sections {
    ($before:literal, $after:literal) => {
        concat!(
            $before,
            "(select 'api' as section, \
             (select to_jsonb(r) from rest_settings r where r.project_id = $1) as value \
             union all select 'network', \
             (select to_jsonb(n) from project_networks n where n.project_id = $1) \
             union all select v.service, (select to_jsonb(s) from service_settings s \
             where s.project_id = $1 and s.service = v.service) \
             from (values ('auth'), ('realtime'), ('storage')) v (service)) c ",
            $after
        )
    };
}

/// Statements that restore the changed sections, except those that were changed again since.
const RESTORE: [&str; 5] = [
    "update service_settings s set settings = coalesce(f.before -> 'settings', '{}'), \
     secrets = (f.before ->> 'secrets')::bytea, generation = s.generation + 1 \
     from settings_fallbacks f where f.project_id = $1 and s.project_id = $1 \
     and f.section = s.service and f.after = to_jsonb(s) and f.before is distinct from f.after",
    "update rest_settings r set db_schema = b.db_schema, max_rows = b.max_rows, \
     db_extra_search_path = b.db_extra_search_path, db_pool = b.db_pool, \
     generation = r.generation + 1 \
     from settings_fallbacks f, jsonb_populate_record(null::rest_settings, f.before) b \
     where f.project_id = $1 and r.project_id = $1 and f.section = 'api' \
     and f.before is not null and f.after = to_jsonb(r) and f.before <> f.after",
    "delete from rest_settings r using settings_fallbacks f where f.project_id = $1 \
     and r.project_id = $1 and f.section = 'api' and f.before is null and f.after = to_jsonb(r)",
    "update project_networks n set tls_required = b.tls_required, allowed = b.allowed, \
     updated_at = b.updated_at \
     from settings_fallbacks f, jsonb_populate_record(null::project_networks, f.before) b \
     where f.project_id = $1 and n.project_id = $1 and f.section = 'network' \
     and f.before is not null and f.after = to_jsonb(n) and f.before <> f.after",
    "delete from project_networks n using settings_fallbacks f where f.project_id = $1 \
     and n.project_id = $1 and f.section = 'network' and f.before is null \
     and f.after = to_jsonb(n)",
];

const DOING: &str = "keeping the settings of services";

/// Keeps the settings before a change. Those of an earlier change that has not been settled stay.
pub(in crate::control) async fn keep_before(
    transaction: &Transaction<'_>,
    project: ProjectId,
) -> Result<(), Error> {
    let sql = sections!(
        "insert into settings_fallbacks (project_id, section, before) \
         select $1::bigint, c.section, c.value from ",
        "on conflict (project_id, section) do nothing"
    );
    let kept = transaction.execute(sql, &[&project.0]).await;
    kept.context(DOING).map(drop)
}

/// Keeps the settings after a change, by which later ones are recognized.
pub(in crate::control) async fn keep_after(
    transaction: &Transaction<'_>,
    project: ProjectId,
) -> Result<(), Error> {
    let sql = sections!(
        "update settings_fallbacks f set after = c.value from ",
        "where f.project_id = $1 and f.section = c.section"
    );
    let kept = transaction.execute(sql, &[&project.0]).await;
    kept.context(DOING).map(drop)
}

/// Ends a change: restores the previous settings of services if the server did not start with its
/// new ones.
pub(in crate::control::projects) async fn settle(
    transaction: &Transaction<'_>,
    project: ProjectId,
    has_failed: bool,
) -> Result<(), Error> {
    let doing = "settling the settings of services";
    let restored = RESTORE.into_iter().filter(|_| has_failed);
    let end = "delete from settings_fallbacks where project_id = $1";
    for sql in restored.chain([end]) {
        let done = transaction.execute(sql, &[&project.0]).await;
        done.context(doing)?;
    }
    Ok(())
}
