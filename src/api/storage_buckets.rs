//! Operation that lists the buckets of a project's files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    api::context::ApiContext,
    control::{
        database_session::{
            DATABASE, READER,
            session::{ConnectTarget, DatabaseSession, SessionLimits},
        },
        projects,
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        error::{Context as _, Error},
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of buckets.
pub static ENDPOINTS: &[&Endpoint] = &[&LIST];

static LIST: Endpoint = Endpoint {
    id: "v1-list-all-buckets",
    summary: "List storage buckets",
    tag: Tag::Storage,
    method: Verb::Get,
    path: "/v1/projects/{ref}/storage/buckets",
    aliases: &[],
    access: needs(&[&[P::StorageRead]], S::StorageRead),
    limit: &STANDARD,
    handler: || mount(list),
};

/// Reads the buckets as one JSON array, at most 10,000 in the order of their creation. Texts that
/// the contract requires are never null.
const READ: &str = "select coalesce(json_agg(bucket), '[]') from (\
    select id::text, name::text, coalesce(owner_id, owner::text, '') as owner, \
    coalesce(to_char(created_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), '') as created_at, \
    coalesce(to_char(updated_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), '') as updated_at, \
    coalesce(public, false) as public \
    from storage.buckets b order by b.created_at, b.id limit 10000) bucket";

/// A bucket of files.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "V1StorageBucketResponse")]
struct StorageBucket {
    /// Identifier.
    id: String,
    /// Name.
    name: String,
    /// The user that created it. Empty if a role of the database did.
    owner: String,
    /// Time of creation (RFC 3339).
    created_at: String,
    /// Time of the last change (RFC 3339).
    updated_at: String,
    /// Whether files can be read without a key.
    public: bool,
}

async fn list(project: Project, context: ApiContext) -> Result<Json<Vec<StorageBucket>>, Error> {
    let target = projects::target(&context, &project).await?;
    read(&target, SessionLimits::default()).await.map(Json)
}

/// Reads the table of buckets with the rights of the read-only role.
///
/// Errors: [`Error::Sql`] if the owner removed the table or a column of it.
async fn read(target: &ConnectTarget, limits: SessionLimits) -> Result<Vec<StorageBucket>, Error> {
    let settings = [
        ("default_transaction_read_only", "on"),
        ("search_path", "pg_catalog"),
    ];
    let mut session = DatabaseSession::open(target, READER, DATABASE, &settings, limits).await?;
    let rows = session.query(READ, &[]).await?.rows.texts();
    let text = rows.into_iter().flatten().flatten().next();
    serde_json::from_str(&text.unwrap_or_default()).context("reading the buckets of a project")
}
