//! Rehearsal of a migration: runs it in a transaction that is rolled back and reports its effects.
//!
//! A rollback undoes everything except drawing from a sequence. Each sequence therefore gets a new
//! file first, which is rolled back too; until then other sessions wait for it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    time::Duration,
};

use gantry_base::clock::Clock;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::time::Instant;

use super::{MigrationLimits, NewMigration, history::HistoryTransaction, progress, segmented};
use crate::{
    control::database_session::{
        segments::{MigrationPlan, Segment, SegmentCuts, SegmentKind},
        session::{ConnectTarget, DatabaseSession, FailureSite},
    },
    platform::error::Error,
};

/// Effects of a migration.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "GantryRehearsal")]
pub struct MigrationRehearsal {
    /// Version that it would be recorded as.
    pub version: String,
    /// Whether a request with the same key has already applied it.
    pub replayed: bool,
    /// Run time of the statements, in ms.
    pub duration_ms: f64,
    /// Maximum wait for one lock, in ms.
    pub lock_timeout_ms: u64,
    /// Maximum run time, in ms.
    pub time_limit_ms: u64,
    /// Statements of the migration that were executed.
    pub statements: Vec<RehearsedStatement>,
    /// Number of transactions, and of statements outside of one, that the migration is applied in.
    /// With more than one, a failure leaves the preceding ones applied.
    pub segments: usize,
    /// Statements that were not executed, because they cannot run in the transaction of a dry run.
    pub not_rehearsed: Vec<UnrehearsedStatement>,
    /// Locks on existing objects, the strongest and longest held first.
    pub locks: Vec<HeldLock>,
    /// Created objects. Parts of a new table are not listed, except indexes, triggers and policies.
    pub created: Vec<DatabaseObject>,
    /// Changed objects. Columns, constraints, triggers and policies of a table are separate
    /// objects.
    pub altered: Vec<DatabaseObject>,
    /// Dropped objects.
    pub dropped: Vec<DatabaseObject>,
    /// Tables and indexes with rewritten files.
    pub rewritten: Vec<DatabaseObject>,
    /// Numbers of written rows, by table.
    pub rows: Vec<TableRowCounts>,
    /// Sequences of other owners that advanced. They cannot be rolled back.
    pub sequences_left_advanced: Vec<String>,
}

/// A statement with its run time.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Ran")]
pub struct RehearsedStatement {
    /// First line.
    pub line: usize,
    /// Command tag, such as `ALTER TABLE` or `UPDATE 3`.
    pub command: String,
    /// Run time, in ms.
    pub duration_ms: f64,
}

/// A statement that a dry run does not execute.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "NotRehearsed")]
pub struct UnrehearsedStatement {
    /// First line.
    pub line: usize,
    /// First words of the statement.
    pub statement: String,
    /// Reason, in one sentence.
    pub reason: String,
}

/// A lock that may block other sessions.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[schemars(rename = "Lock")]
pub struct HeldLock {
    /// Lock mode, such as `AccessExclusiveLock`, which also blocks readers.
    pub mode: String,
    /// Locked object.
    #[serde(flatten)]
    pub object: DatabaseObject,
    /// Time from the start of the statement that acquired it to the end, in ms.
    pub held_ms: f64,
}

/// A database object, as PostgreSQL names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[schemars(rename = "Object")]
pub struct DatabaseObject {
    /// Type, such as `table`, `table column` or `function`.
    pub kind: String,
    /// Name with schema, quoted if necessary.
    pub name: String,
}

/// Numbers of written rows of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Touched")]
pub struct TableRowCounts {
    /// Name with schema, quoted if necessary.
    pub table: String,
    /// Inserted rows.
    pub inserted: u64,
    /// Updated rows.
    pub updated: u64,
    /// Deleted rows.
    pub deleted: u64,
}

/// Runs the migration like [`super::apply`], rolls it back and returns its effects.
///
/// Errors: those of [`super::apply`]; a sequence that another transaction uses counts as a lock.
pub async fn rehearse(
    target: &ConnectTarget,
    clock: &Clock,
    migration: &NewMigration,
    limits: MigrationLimits,
) -> Result<MigrationRehearsal, Error> {
    let mut plan = MigrationPlan::parse(&migration.query, &SegmentCuts::default())?;
    let mut history = HistoryTransaction::begin(target, limits).await?;
    let request = migration.fingerprint("apply");
    let mut rehearsal = MigrationRehearsal::new(limits);
    if let Some(version) = history.find_replay(migration, &request).await? {
        return Ok(MigrationRehearsal {
            version,
            replayed: true,
            ..rehearsal
        });
    }
    let resumed = if history.has_progress {
        progress::find(&mut history, migration).await?
    } else {
        None
    };
    plan.skip_to(resumed.map_or(0, |progress| progress.applied));
    rehearsal.segments = plan.segments.len();
    rehearsal.version = history.record(clock, migration, &request).await?;
    let held = hold_sequences(&mut history.session).await;
    held.map_err(|error| history.with_hint(error))?;

    let before = CatalogSnapshot::look(&mut history.session).await?;
    let mut taken = Vec::new();
    let (mut line, mut counted) = (1, 0);
    let start = Instant::now();
    for segment in &plan.segments {
        let rolled_back = matches!(
            segment.kind,
            SegmentKind::Explicit {
                rolled_back: true,
                ..
            }
        );
        if rolled_back {
            history
                .session
                .batch_execute("savepoint gantry_segment")
                .await?;
        }
        for part in &segment.statements {
            let begun = start.elapsed();
            line += plan.sql()[counted..part.start].matches('\n').count();
            counted = part.start;
            let ran = rehearse_statement(&mut history, &plan, segment, part).await?;
            let command = match ran {
                Ok(command) => command,
                Err(reason) => {
                    let statement = plan.beginning(part.start);
                    rehearsal.not_rehearsed.push(UnrehearsedStatement {
                        line,
                        statement,
                        reason,
                    });
                    rehearsal.segments += usize::from(segment.kind == SegmentKind::Implicit);
                    continue;
                }
            };
            rehearsal.statements.push(RehearsedStatement {
                line,
                command,
                duration_ms: millis(start.elapsed().saturating_sub(begun)),
            });
            let fresh = locks(&mut history.session)
                .await?
                .into_iter()
                .filter(|lock| !before.locks.contains(lock));
            let fresh: Vec<_> = fresh
                .filter(|lock| !taken.iter().any(|(known, _)| known == lock))
                .collect();
            taken.extend(fresh.into_iter().map(|lock| (lock, begun)));
        }
        if rolled_back {
            history
                .session
                .batch_execute("rollback to gantry_segment")
                .await?;
        }
    }
    let took = start.elapsed();
    history.ensure_open().await?;
    let after = CatalogSnapshot::look(&mut history.session).await?;
    history.session.batch_execute("rollback").await?;

    rehearsal.duration_ms = millis(took);
    rehearsal.describe(&before, &after);
    rehearsal.locks = taken
        .into_iter()
        .filter_map(|((relation, mode), begun)| {
            before.lock(&relation, mode, took.saturating_sub(begun))
        })
        .collect();
    rehearsal
        .locks
        .sort_by(|a, b| (strength(&b.mode), &a.object).cmp(&(strength(&a.mode), &b.object)));
    Ok(rehearsal)
}

/// Executes a statement. Returns its command tag, or the reason why it cannot run here.
pub(super) async fn rehearse_statement(
    history: &mut HistoryTransaction,
    plan: &MigrationPlan<'_>,
    segment: &Segment,
    part: &Range<usize>,
) -> Result<Result<String, String>, Error> {
    if matches!(segment.kind, SegmentKind::Standalone(_)) {
        return Ok(Err("PostgreSQL does not run it inside a transaction".into()));
    }
    // Savepoints belong to the migration, and settings of a transaction must not be in one.
    let guarded = segment.kind == SegmentKind::Implicit && !plan.is_about_transaction(part);
    if guarded {
        history
            .session
            .batch_execute("savepoint gantry_statement")
            .await?;
    }
    let ran = history
        .session
        .execute_statement(plan.sql(), part.clone())
        .await;
    match ran {
        Ok(command) => {
            if guarded {
                history
                    .session
                    .batch_execute("release gantry_statement")
                    .await?;
            }
            Ok(Ok(command))
        }
        Err(error) if guarded && segmented::needs_segments(&error) => {
            history
                .session
                .batch_execute("rollback to gantry_statement")
                .await?;
            Ok(Err(first_line(&error)))
        }
        Err(error) => Err(segmented::with_context(
            history.with_hint(error),
            plan,
            Some(FailureSite {
                completed: 0,
                position: Some(part.start),
            }),
        )),
    }
}

fn first_line(error: &Error) -> String {
    error
        .message()
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Lock modes, the weakest first (PostgreSQL's documentation, "Table-Level Locks").
const MODES: [&str; 8] = [
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
];

fn strength(mode: &str) -> Option<usize> {
    MODES.iter().position(|known| *known == mode)
}

impl MigrationRehearsal {
    fn new(limits: MigrationLimits) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            version: String::new(),
            replayed: false,
            duration_ms: 0.0,
            lock_timeout_ms: millis(limits.lock_timeout),
            time_limit_ms: millis(limits.session.time),
            statements: Vec::new(),
            segments: 1,
            not_rehearsed: Vec::new(),
            locks: Vec::new(),
            created: Vec::new(),
            altered: Vec::new(),
            dropped: Vec::new(),
            rewritten: Vec::new(),
            rows: Vec::new(),
            sequences_left_advanced: Vec::new(),
        }
    }

    /// Records the differences of two snapshots.
    fn describe(&mut self, before: &CatalogSnapshot, after: &CatalogSnapshot) {
        self.created = after.without(before);
        self.dropped = before.without(after);
        let both = || {
            after
                .things
                .iter()
                .filter_map(|(id, now)| Some((before.things.get(id)?, now)))
        };
        self.altered = both()
            .filter(|(then, now)| then.hash != now.hash)
            .map(|(_, now)| now.object.clone())
            .collect();
        self.rewritten = both()
            .filter(|(then, now)| then.file != now.file)
            .map(|(_, now)| now.object.clone())
            .collect();
        for list in [
            &mut self.created,
            &mut self.altered,
            &mut self.dropped,
            &mut self.rewritten,
        ] {
            list.sort();
        }
        let written = after.rows.iter().map(|(table, now)| {
            let then = before.rows.get(table).copied().unwrap_or_default();
            let [inserted, updated, deleted] =
                std::array::from_fn(|n| now[n].saturating_sub(then[n]));
            TableRowCounts {
                table: table.clone(),
                inserted,
                updated,
                deleted,
            }
        });
        self.rows = written
            .filter(|touched| touched.inserted + touched.updated + touched.deleted > 0)
            .collect();
        let advanced = before
            .sequences
            .iter()
            .filter(|(name, then)| after.sequences.get(*name).is_some_and(|now| now != *then));
        self.sequences_left_advanced = advanced.map(|(name, _)| name.clone()).collect();
    }
}

/// Key of a catalog row: table, object id and column number.
type CatalogId = (String, String, String);
/// Object id and mode of a lock.
type RelationLock = (String, String);

struct CatalogEntry {
    object: DatabaseObject,
    /// Table that contains it. It is not listed beside a new table.
    part_of: Option<String>,
    /// Hash of its definition.
    hash: String,
    /// Name of its data file, which changes when rows are rewritten. Empty without a file.
    file: String,
}

/// State of the database at a moment of the transaction.
struct CatalogSnapshot {
    things: HashMap<CatalogId, CatalogEntry>,
    locks: Vec<RelationLock>,
    /// Numbers of rows inserted, updated and deleted since the transaction began.
    rows: BTreeMap<String, [u64; 3]>,
    /// Last values of sequences that cannot be rolled back.
    sequences: BTreeMap<String, Option<String>>,
}

/// Named objects of the customer. The hash excludes columns that are written by statistics and
/// vacuum, or that follow from other objects.
const THINGS: &str = r"
with relation as (
    select c.* from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
), thing(class, id, sub, part_of, hash, file) as (
    select 'pg_catalog.pg_class'::pg_catalog.regclass, c.oid, 0, null::oid,
        (pg_catalog.to_jsonb(c) - array['relfilenode', 'relpages', 'reltuples', 'relallvisible', 'relallfrozen', 'relfrozenxid',
            'relminmxid', 'relnatts', 'relchecks', 'relhasindex', 'relhasrules', 'relhastriggers', 'relhassubclass'])::text
            || coalesce((select pg_catalog.string_agg(r.ev_action::text, '') from pg_catalog.pg_rewrite r
                         where r.ev_class = c.oid and c.relkind in ('v', 'm')), '')
            || coalesce((select s::text from pg_catalog.pg_sequence s where s.seqrelid = c.oid), ''),
        case when c.relkind in ('r', 'm', 'i') then c.relfilenode end
    from relation c
    union all
    select 'pg_catalog.pg_class'::pg_catalog.regclass, a.attrelid, a.attnum, a.attrelid,
        a::text || coalesce((select pg_catalog.pg_get_expr(d.adbin, d.adrelid) from pg_catalog.pg_attrdef d
                             where d.adrelid = a.attrelid and d.adnum = a.attnum), ''), null
    from pg_catalog.pg_attribute a join relation c on c.oid = a.attrelid
    where a.attnum > 0 and not a.attisdropped and c.relkind in ('r', 'p', 'f', 'c')
    union all
    select 'pg_catalog.pg_constraint'::pg_catalog.regclass, k.oid, 0, k.conrelid, k::text, null
    from pg_catalog.pg_constraint k join relation c on c.oid = k.conrelid
    union all
    select 'pg_catalog.pg_trigger'::pg_catalog.regclass, t.oid, 0, null, t::text, null
    from pg_catalog.pg_trigger t join relation c on c.oid = t.tgrelid where not t.tgisinternal
    union all
    select 'pg_catalog.pg_policy'::pg_catalog.regclass, p.oid, 0, null, p::text, null
    from pg_catalog.pg_policy p join relation c on c.oid = p.polrelid
    union all
    select 'pg_catalog.pg_proc'::pg_catalog.regclass, p.oid, 0, null, p::text, null
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = p.pronamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    union all
    select 'pg_catalog.pg_type'::pg_catalog.regclass, t.oid, 0, null,
        t::text || coalesce((select pg_catalog.string_agg(e.enumlabel, ',' order by e.enumsortorder) from pg_catalog.pg_enum e
                             where e.enumtypid = t.oid), '')
            || coalesce((select pg_catalog.string_agg(k::text, '' order by k.oid) from pg_catalog.pg_constraint k
                         where k.contypid = t.oid), ''), null
    from pg_catalog.pg_type t join pg_catalog.pg_namespace n on n.oid = t.typnamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and (t.typtype in ('d', 'e', 'r') or t.typtype = 'b' and t.typelem = 0)
    union all
    select 'pg_catalog.pg_namespace'::pg_catalog.regclass, n.oid, 0, null, n::text, null
    from pg_catalog.pg_namespace n where n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    union all
    select 'pg_catalog.pg_extension'::pg_catalog.regclass, e.oid, 0, null, e::text, null from pg_catalog.pg_extension e
    union all
    select 'pg_catalog.pg_authid'::pg_catalog.regclass, r.oid, 0, null, r::text, null from pg_catalog.pg_roles r
)
select t.class::oid, t.id, t.sub, o.type, o.identity, t.part_of, pg_catalog.md5(t.hash), t.file
from thing t, pg_catalog.pg_identify_object(t.class, t.id, t.sub) o where o.identity is not null";

const ROWS: &str = "
    select pg_catalog.format('%I.%I', schemaname, relname), n_tup_ins, n_tup_upd, n_tup_del
    from pg_catalog.pg_stat_xact_user_tables where n_tup_ins + n_tup_upd + n_tup_del > 0 and schemaname !~ '^pg_'";

const OTHERS_SEQUENCES: &str = "
    select pg_catalog.format('%I.%I', s.schemaname, s.sequencename), s.last_value
    from pg_catalog.pg_sequences s where not pg_catalog.pg_has_role(s.sequenceowner, 'USAGE')";

impl CatalogSnapshot {
    async fn look(session: &mut DatabaseSession) -> Result<Self, Error> {
        let locks = locks(session).await?;
        let things = session.simple_query(THINGS).await?.rows;
        let rows = session.simple_query(ROWS).await?.rows;
        let sequences = session.simple_query(OTHERS_SEQUENCES).await?.rows;
        Ok(Self {
            things: things.records().filter_map(thing).collect(),
            locks,
            rows: rows.records().filter_map(counts).collect(),
            sequences: sequences
                .records()
                .filter_map(|[name, at]| Some((name?, at)))
                .collect(),
        })
    }

    /// Returns objects that are not in `other`, without parts of listed tables.
    fn without(&self, other: &Self) -> Vec<DatabaseObject> {
        let listed = |id: &CatalogId| !other.things.contains_key(id);
        let beside = |thing: &CatalogEntry| {
            thing
                .part_of
                .as_deref()
                .is_none_or(|table| !listed(&relation(table)))
        };
        self.things
            .iter()
            .filter(|(id, thing)| listed(id) && beside(thing))
            .map(|(_, thing)| thing.object.clone())
            .collect()
    }

    fn lock(&self, id: &str, mode: String, held: Duration) -> Option<HeldLock> {
        let thing = self.things.get(&relation(id))?;
        Some(HeldLock {
            mode,
            object: thing.object.clone(),
            held_ms: millis(held),
        })
    }
}

/// Returns the key of a table, index, view or sequence. 1259 is the object id of `pg_class`.
fn relation(id: &str) -> CatalogId {
    ("1259".to_owned(), id.to_owned(), "0".to_owned())
}

fn thing(row: [Option<String>; 8]) -> Option<(CatalogId, CatalogEntry)> {
    let [class, id, sub, kind, name, part_of, hash, file] = row;
    let object = DatabaseObject {
        kind: kind?,
        name: name?,
    };
    Some((
        (class?, id?, sub?),
        CatalogEntry {
            object,
            part_of,
            hash: hash?,
            file: file.unwrap_or_default(),
        },
    ))
}

fn counts([table, inserted, updated, deleted]: [Option<String>; 4]) -> Option<(String, [u64; 3])> {
    Some((
        table?,
        [
            inserted?.parse().ok()?,
            updated?.parse().ok()?,
            deleted?.parse().ok()?,
        ],
    ))
}

async fn locks(session: &mut DatabaseSession) -> Result<Vec<RelationLock>, Error> {
    let sql = "select relation, mode from pg_catalog.pg_locks
               where locktype = 'relation' and granted and pid = pg_catalog.pg_backend_pid()";
    let rows = session.simple_query(sql).await?.rows;
    Ok(rows
        .records()
        .filter_map(|[relation, mode]| Some((relation?, mode?)))
        .collect())
}

/// Gives each sequence that the owner can alter a new file, without changing its values.
pub(super) async fn hold_sequences(session: &mut DatabaseSession) -> Result<(), Error> {
    let sql = "select pg_catalog.format('alter sequence %I.%I cache %s', n.nspname, c.relname, s.seqcache)
               from pg_catalog.pg_sequence s join pg_catalog.pg_class c on c.oid = s.seqrelid
               join pg_catalog.pg_namespace n on n.oid = c.relnamespace
               where pg_catalog.pg_has_role(c.relowner, 'USAGE') order by c.oid";
    let rows = session.simple_query(sql).await?.rows;
    let changes: Vec<_> = rows.values().collect();
    session.batch_execute(&changes.join(";")).await.map(drop)
}
