//! The authority of the fleet, in the control database. Its key is sealed: a node needs the
//! database and the sealing key to issue its certificate.

use chrono::{DateTime, Utc};

use super::node_tls::{FleetAuthority, NodeTls};
use crate::{
    control::context::ControlContext,
    platform::error::{Context, Error},
};

/// Context of the sealed key.
const SEALED_AS: &str = "fleet_authority";

/// Issues the certificate of this node. The first node creates the authority.
pub(super) async fn issue(context: &ControlContext, now: DateTime<Utc>) -> Result<NodeTls, Error> {
    let authority = match load(context).await? {
        Some(authority) => authority,
        None => create(context).await?,
    };
    NodeTls::issue(context.settings.node, &authority, now)
}

async fn load(context: &ControlContext) -> Result<Option<FleetAuthority>, Error> {
    let sql = "select certificate, sealed_key from fleet_authority";
    let rows = context.db.query(sql, &[]).await;
    let rows = rows.context("reading the authority of the fleet")?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let sealed: Vec<u8> = row.get(1);
    Ok(Some(FleetAuthority {
        certificate: row.get(0),
        key: context.settings.sealing.open(SEALED_AS, &sealed)?,
    }))
}

async fn create(context: &ControlContext) -> Result<FleetAuthority, Error> {
    let doing = "creating the authority of the fleet";
    let authority = FleetAuthority::generate()?;
    let sealing = &context.settings.sealing;
    let sealed = sealing.seal(&context.entropy, SEALED_AS, &authority.key)?;
    let now = context.clock.now();
    let sql = "insert into fleet_authority (certificate, sealed_key, created_at) values ($1, $2, $3) on conflict do nothing";
    let created = context
        .db
        .query(sql, &[&authority.certificate, &sealed, &now])
        .await;
    created.context(doing)?;
    // Another node may have been faster.
    load(context).await?.ok_or("it is missing").context(doing)
}
