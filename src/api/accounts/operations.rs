//! Operations on the caller's own account.

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    api::{accounts, context::ApiContext},
    platform::{
        access::{Access, User},
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&GET_PROFILE];

static GET_PROFILE: Endpoint = Endpoint {
    id: "v1-get-profile",
    summary: "Get the caller's profile",
    tag: Tag::Profile,
    method: Verb::Get,
    path: "/v1/profile",
    aliases: &[],
    access: Access::User,
    limit: &STANDARD,
    handler: || mount(get_profile),
};

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Profile")]
struct CallerProfile {
    gotrue_id: String,
    primary_email: String,
    username: String,
}

async fn get_profile(user: User, context: ApiContext) -> Result<Json<CallerProfile>, Error> {
    let account = accounts::by_id(&context.db, user.id).await?;
    Ok(Json(CallerProfile {
        gotrue_id: account.gotrue_id.to_string(),
        primary_email: account.email,
        username: account.username,
    }))
}
