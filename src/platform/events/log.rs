//! The log in the control database: appending and reading.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use gantry_base::{
    clock::Entropy,
    ids::{OrganizationId, ProjectRef},
};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::{Event, NewEvent, retention::KEPT_DAYS};
use crate::platform::{
    db::{Db, Param},
    error::{Context, Error},
};

/// Appends events to the logs of their organizations, in the transaction of the change. `actor` is
/// the user of the request; `None` or the nil UUID for changes by Gantry and its operator.
///
/// Locks the heads of the logs until the transaction ends, in the order of the organizations. A
/// transaction appends all its events at once, and after its entries of the audit log: two
/// transactions with another order of locks could wait for each other.
pub async fn append(
    transaction: &Transaction<'_>,
    events: &[NewEvent],
    actor: Option<Uuid>,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let mut logs: BTreeMap<OrganizationId, Vec<&NewEvent>> = BTreeMap::new();
    for event in events {
        logs.entry(event.organization).or_default().push(event);
    }
    let actor = actor.filter(|actor| !actor.is_nil());
    for (organization, events) in logs {
        append_to(transaction, organization, &events, actor, entropy, now).await?;
    }
    Ok(())
}

async fn append_to(
    transaction: &Transaction<'_>,
    organization: OrganizationId,
    events: &[&NewEvent],
    actor: Option<Uuid>,
    entropy: &Entropy,
    now: DateTime<Utc>,
) -> Result<(), Error> {
    let doing = "appending events";
    let count = i64::try_from(events.len()).context(doing)?;
    let ids: Vec<Uuid> = events.iter().map(|_| entropy.uuid_v7(now)).collect();
    let names: Vec<&str> = events.iter().map(|event| event.name).collect();
    let projects: Vec<Option<&str>> = events
        .iter()
        .map(|event| event.project.as_ref().map(ProjectRef::as_str))
        .collect();
    let payloads: Vec<&str> = events.iter().map(|event| event.payload.as_str()).collect();
    let sql = "with head as (
                   update event_heads set number = number + $2 where organization_id = $1
                   returning number - $2 as last
               )
               insert into events
                   (organization_id, number, id, type, at, project_ref, actor, payload)
               select $1, head.last + e.place, e.id, e.type, $3::timestamptz, e.project_ref,
                   $4::uuid, e.payload
               from head, unnest($5::uuid[], $6::text[], $7::text[], $8::text[])
                   with ordinality as e (id, type, project_ref, payload, place)";
    let params: [Param<'_>; 8] = [
        &organization.0,
        &count,
        &now,
        &actor,
        &ids,
        &names,
        &projects,
        &payloads,
    ];
    if transaction.execute(sql, &params).await.context(doing)? > 0 {
        return Ok(());
    }
    // The first event of the organization.
    let head =
        "insert into event_heads (organization_id, number) values ($1, 0) on conflict do nothing";
    transaction
        .execute(head, &[&organization.0])
        .await
        .context(doing)?;
    transaction
        .execute(sql, &params)
        .await
        .context(doing)
        .map(drop)
}

/// Conditions for the events of a page.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Events with a higher number. `None`: from the oldest event on.
    pub after: Option<i64>,
    /// Events of these projects; of all and of the organization, if empty.
    pub projects: Vec<String>,
    /// Events of these types; of all, if empty.
    pub types: Vec<String>,
    /// Number of events, at most.
    pub limit: i64,
}

/// A part of the log, in the order of the numbers.
#[derive(Debug)]
pub struct EventPage {
    /// The events that match the filter.
    pub events: Vec<Event>,
    /// Number up to which the log was read: `after` of the next page.
    pub next: i64,
    /// Number of the last event of the organization.
    pub last: i64,
}

/// Reads a part of the log.
///
/// Errors: [`Error::Gone`] if events after [`EventFilter::after`] were removed;
/// [`Error::Invalid`] if it is later than the last event.
pub async fn page(
    db: &Db,
    organization: OrganizationId,
    filter: &EventFilter,
) -> Result<EventPage, Error> {
    // One statement, so that the numbers and the events are of one moment.
    let sql =
        "select h.number, o.number, e.number, e.id, e.type, e.at, e.project_ref, e.actor, e.payload
               from event_heads h
               cross join lateral (select coalesce(min(x.number), h.number + 1) as number
                                   from events x where x.organization_id = h.organization_id) o
               left join lateral (
                   select * from events x
                   where x.organization_id = h.organization_id
                       and x.number > coalesce($2::bigint, 0)
                       and (cardinality($3::text[]) = 0 or x.project_ref = any($3))
                       and (cardinality($4::text[]) = 0 or x.type = any($4))
                   order by x.number limit $5
               ) e on true
               where h.organization_id = $1 order by e.number";
    let EventFilter {
        after,
        projects,
        types,
        limit,
    } = filter;
    let rows = db
        .query(sql, &[&organization.0, after, projects, types, limit])
        .await
        .context("reading events")?;
    let (last, oldest) = rows.first().map_or((0, 1), |row| (row.get(0), row.get(1)));
    check_cursor(*after, oldest, last)?;
    let events: Vec<Event> = rows.iter().filter_map(read).collect();
    let is_full = i64::try_from(events.len()).is_ok_and(|found| found >= *limit);
    let next = events
        .last()
        .filter(|_| is_full)
        .map_or(last, |event| event.number);
    Ok(EventPage { events, next, last })
}

/// Returns the number of the last event of a project's organization; 0 if there is none.
pub async fn last_number(db: &Db, project: &ProjectRef) -> Result<i64, Error> {
    let sql = "select h.number from projects p
               join event_heads h on h.organization_id = p.organization_id where p.ref = $1";
    let rows = db.query(sql, &[&project.as_str()]).await;
    let rows = rows.context("reading events")?;
    Ok(rows.first().map_or(0, |row| row.get(0)))
}

/// Rejects a cursor if the log does not have all events after it.
fn check_cursor(after: Option<i64>, oldest: i64, last: i64) -> Result<(), Error> {
    let Some(after) = after else {
        return Ok(());
    };
    if after > last {
        let problem =
            format!("{after} is later than the last event, {last}; start again without it");
        return Err(Error::invalid("after", problem));
    }
    if after + 1 < oldest {
        return Err(Error::Gone(
            format!(
                "Events up to {} were removed: they are kept for {KEPT_DAYS} days. \
                 Read the present state, and continue with after={}",
                oldest - 1,
                oldest - 1
            )
            .into(),
        ));
    }
    Ok(())
}

/// Reads an event of a joined row. `None` if the join found none.
fn read(row: &Row) -> Option<Event> {
    Some(Event {
        number: row.get::<_, Option<i64>>(2)?,
        id: row.get(3),
        name: row.get(4),
        at: row.get(5),
        project: row.get(6),
        actor: row.get(7),
        payload: row.get(8),
    })
}
