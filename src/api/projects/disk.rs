//! Operations on a project's disk space and on its read-only mode.
//!
//! The owner can choose more disk space, up to the bound of the operator. Nothing else can be
//! changed.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use gantry_node::error::ClusterError;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    api::context::ApiContext,
    control::projects,
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs, pat_only},
        audit::Recorder,
        error::{Context, Error},
        http::{Endpoint, Json, Tag, Verb, mount, output::CreatedEmpty},
        rate_limits::STANDARD,
    },
};

/// Endpoints of disk space and read-only mode.
pub static ENDPOINTS: &[&Endpoint] = &[
    &GET,
    &UPDATE,
    &GET_AUTOSCALE,
    &GET_USE,
    &GET_READ_ONLY,
    &DISABLE_READ_ONLY,
];

/// Bytes of a gigabyte, as disks are sold and as the contract counts.
const GB: u64 = 1 << 30;
/// Time for which read-only mode is off.
const WRITABLE_TIME: TimeDelta = TimeDelta::minutes(15);
/// Performance that the contract requires in answers. Nothing here enforces it.
const IOPS: u32 = 3000;
const THROUGHPUT: u32 = 125;
/// Most files that are counted.
const INODES_MAX: u64 = 1_000_000;

/// Disk space of a project, in bytes.
struct DiskSpace {
    size: u64,
    used: u64,
    available: u64,
}

async fn measure(context: &ApiContext, project: &Project) -> Result<DiskSpace, Error> {
    let doing = "measuring disk space";
    projects::status(context, project.id).await?;
    let usage = context
        .driver
        .disk_usage(&project.reference, INODES_MAX)
        .await;
    // A project that is not created yet has no files.
    let used = match usage {
        Err(ClusterError::Missing(_)) => 0,
        usage => usage.context(doing)?.bytes,
    };
    let (free, _) = context.driver.free_space().unwrap_or_default();
    let limits = context.driver.resource_limits();
    // Without a limit, the project can use the file system.
    let sql = "select disk_bytes from projects where id = $1";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let chosen = rows.context(doing)?.first().and_then(|row| row.get(0));
    let size = limits.map_or(used.saturating_add(free), |limits| {
        limits.with_disk_choice(chosen).disk_hard_bytes
    });
    Ok(DiskSpace {
        size,
        used,
        available: size.saturating_sub(used).min(free),
    })
}

static GET: Endpoint = Endpoint {
    id: "v1-get-database-disk",
    summary: "Get the configuration of a project's disk",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/disk",
    aliases: &[],
    access: pat_only(&[&[P::InfraDiskConfigRead]]),
    limit: &STANDARD,
    handler: || mount(get),
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum DiskType {
    Gp3,
    Io2,
}

/// Attributes of a disk.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
struct DiskAttributes {
    r#type: DiskType,
    /// Operations a second. Not enforced.
    #[schemars(range(min = 1))]
    iops: u32,
    /// The limit of the project's disk space.
    #[schemars(range(min = 1))]
    size_gb: u64,
    /// Throughput. Not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    throughput_mibps: Option<u32>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiskResponse")]
struct DiskConfig {
    attributes: DiskAttributes,
}

async fn get(project: Project, context: ApiContext) -> Result<Json<DiskConfig>, Error> {
    let space = measure(&context, &project).await?;
    let attributes = DiskAttributes {
        r#type: DiskType::Gp3,
        iops: IOPS,
        size_gb: (space.size / GB).max(1),
        throughput_mibps: Some(THROUGHPUT),
    };
    Ok(Json(DiskConfig { attributes }))
}

static UPDATE: Endpoint = Endpoint {
    id: "v1-modify-database-disk",
    summary: "Update the configuration of a project's disk",
    tag: Tag::Projects,
    method: Verb::Post,
    path: "/v1/projects/{ref}/config/disk",
    aliases: &[],
    access: pat_only(&[&[P::InfraDiskConfigWrite]]),
    limit: &STANDARD,
    handler: || {
        mount(update).sample(r#"{"attributes": {"type": "gp3", "iops": 3000, "size_gb": 8}}"#)
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "DiskRequestBody")]
struct DiskUpdate {
    attributes: DiskAttributes,
}

async fn update(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
    Json(update): Json<DiskUpdate>,
) -> Result<CreatedEmpty, Error> {
    let DiskAttributes {
        r#type,
        iops,
        size_gb,
        throughput_mibps,
    } = update.attributes;
    let is_positive = iops > 0 && size_gb > 0 && throughput_mibps != Some(0);
    if !is_positive {
        return Err(Error::invalid(
            "attributes",
            "Too small: expected number to be >0",
        ));
    }
    let has_other_performance = r#type != DiskType::Gp3
        || iops != IOPS
        || throughput_mibps.is_some_and(|it| it != THROUGHPUT);
    if has_other_performance {
        return Err(Error::Rejected(
            "This server does not bound the performance of disks; send the attributes that it \
             answers, with another size"
                .into(),
        ));
    }
    let space = measure(&context, &project).await?;
    let size = (space.size / GB).max(1);
    if size_gb == size {
        return Ok(CreatedEmpty);
    }
    if size_gb < size {
        return Err(Error::Rejected(
            "Disk size cannot be reduced in size".into(),
        ));
    }
    choose_size(&context, &project, size_gb, &space, &audit).await?;
    Ok(CreatedEmpty)
}

/// Stores a larger size. The watchdog uses it in its next round.
async fn choose_size(
    context: &ApiContext,
    project: &Project,
    size_gb: u64,
    space: &DiskSpace,
    audit: &Recorder,
) -> Result<(), Error> {
    let doing = "changing the size of a disk";
    let bytes = size_gb.saturating_mul(GB);
    let most = context.control_settings.project_disk_choice_max;
    if context.driver.resource_limits().is_none() || bytes > most {
        let text = format!(
            "The operator of this server permits {} GB for a project; ask for a higher limit",
            (most / GB).max(space.size / GB)
        );
        return Err(Error::Rejected(text.into()));
    }
    let (free, _) = context.driver.free_space().unwrap_or_default();
    if bytes.saturating_sub(space.used) > free {
        let text = format!("The server has {} GB of free disk space only", free / GB);
        return Err(Error::Rejected(text.into()));
    }
    let bytes = i64::try_from(bytes).context(doing)?;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    // Of concurrent choices, the larger one stays.
    let sql = "update projects set disk_bytes = greatest(disk_bytes, $2) \
               where id = $1 and desired <> 'removed'";
    let updated = transaction.execute(sql, &[&project.id.0, &bytes]).await;
    if updated.context(doing)? == 0 {
        return Err(projects::removed());
    }
    let entry = |gigabytes: u64| Some(json!({ "size_gb": gigabytes }));
    let change = (entry(space.size / GB), entry(size_gb));
    let now = context.clock.now();
    audit.commit(transaction, doing, 201, change, now).await
}

static GET_AUTOSCALE: Endpoint = Endpoint {
    id: "v1-get-project-disk-autoscale-config",
    summary: "Get the autoscaling configuration of a project's disk",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/disk/autoscale",
    aliases: &[],
    access: pat_only(&[&[P::InfraDiskConfigRead]]),
    limit: &STANDARD,
    handler: || mount(get_autoscale),
};

/// Disks do not grow: every field is `null`.
#[derive(Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "DiskAutoscaleConfig")]
struct DiskAutoscale {
    growth_percent: Option<u32>,
    min_increment_gb: Option<u32>,
    max_size_gb: Option<u32>,
}

async fn get_autoscale(
    project: Project,
    context: ApiContext,
) -> Result<Json<DiskAutoscale>, Error> {
    projects::status(&context, project.id).await?;
    Ok(Json(DiskAutoscale::default()))
}

static GET_USE: Endpoint = Endpoint {
    id: "v1-get-disk-utilization",
    summary: "Get the utilization of a project's disk",
    tag: Tag::Projects,
    method: Verb::Get,
    path: "/v1/projects/{ref}/config/disk/util",
    aliases: &[],
    access: pat_only(&[&[P::InfraDiskConfigRead]]),
    limit: &STANDARD,
    handler: || mount(get_use),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiskUtilMetricsResponse")]
struct DiskUtilization {
    timestamp: DateTime<Utc>,
    metrics: DiskMetrics,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct DiskMetrics {
    /// The limit of the project, or what it could use of the file system.
    #[serde(rename = "fs_size_bytes")]
    size: u64,
    #[serde(rename = "fs_avail_bytes")]
    available: u64,
    /// Measured space of the project's files.
    #[serde(rename = "fs_used_bytes")]
    used: u64,
    /// The part of the used space in blocks that the project shares with copies of it, or with its
    /// original.
    #[serde(rename = "fs_shared_bytes")]
    #[schemars(extend("x-gantry" = true))]
    shared: u64,
}

async fn get_use(project: Project, context: ApiContext) -> Result<Json<DiskUtilization>, Error> {
    let space = measure(&context, &project).await?;
    let shared = context
        .driver
        .shared_bytes(&project.reference, INODES_MAX)
        .await;
    let shared = match shared {
        Err(ClusterError::Missing(_)) => 0,
        shared => shared.context("measuring disk space")?,
    };
    Ok(Json(DiskUtilization {
        timestamp: context.clock.now(),
        metrics: DiskMetrics {
            size: space.size,
            available: space.available,
            used: space.used,
            shared,
        },
    }))
}

static GET_READ_ONLY: Endpoint = Endpoint {
    id: "v1-get-readonly-mode-status",
    summary: "Get the status of read-only mode",
    tag: Tag::Database,
    method: Verb::Get,
    path: "/v1/projects/{ref}/readonly",
    aliases: &[],
    access: needs(&[&[P::DatabaseReadonlyConfigRead]], S::DatabaseRead),
    limit: &STANDARD,
    handler: || mount(get_read_only),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ReadOnlyStatusResponse")]
struct ReadOnlyStatus {
    /// Whether the project is read-only, because its disk space is used up.
    enabled: bool,
    /// Whether read-only mode is switched off for now.
    override_enabled: bool,
    /// End of the time for which read-only mode was switched off last. 1970 if it never was.
    override_active_until: DateTime<Utc>,
}

async fn get_read_only(
    project: Project,
    context: ApiContext,
) -> Result<Json<ReadOnlyStatus>, Error> {
    let sql = "select read_only, writable_until from projects \
               where id = $1 and desired <> 'removed'";
    let rows = context.db.query(sql, &[&project.id.0]).await;
    let rows = rows.context("reading whether a project is read-only")?;
    let row = rows.first().ok_or_else(projects::removed)?;
    let until: Option<DateTime<Utc>> = row.get(1);
    Ok(Json(ReadOnlyStatus {
        enabled: row.get(0),
        override_enabled: until.is_some_and(|until| until > context.clock.now()),
        override_active_until: until.unwrap_or(DateTime::UNIX_EPOCH),
    }))
}

static DISABLE_READ_ONLY: Endpoint = Endpoint {
    id: "v1-disable-readonly-mode-temporarily",
    summary: "Disable read-only mode temporarily",
    tag: Tag::Database,
    method: Verb::Post,
    path: "/v1/projects/{ref}/readonly/temporary-disable",
    aliases: &[],
    access: needs(&[&[P::DatabaseReadonlyConfigWrite]], S::DatabaseWrite),
    limit: &STANDARD,
    handler: || mount(disable_read_only),
};

/// Permits writing for 15 minutes. The watchdog carries it out in its next round.
async fn disable_read_only(
    project: Project,
    context: ApiContext,
    audit: Arc<Recorder>,
) -> Result<CreatedEmpty, Error> {
    let doing = "disabling read-only mode";
    let now = context.clock.now();
    let until = now + WRITABLE_TIME;
    let mut client = context.db.client().await?;
    let transaction = client.transaction().await.context(doing)?;
    let sql = "update projects set writable_until = $2 where id = $1 and desired <> 'removed'";
    let updated = transaction.execute(sql, &[&project.id.0, &until]).await;
    if updated.context(doing)? == 0 {
        return Err(projects::removed());
    }
    let change = (None, Some(json!({ "writable_until": until })));
    audit.commit(transaction, doing, 201, change, now).await?;
    Ok(CreatedEmpty)
}
