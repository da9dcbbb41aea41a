//! Operations that describe the API. They are specific to Gantry, public, and rate limited by
//! client address.

use serde_json::{Map, Value};

use super::{Compatibility, assets};
use crate::{
    api::{context::ApiContext, endpoints, path::path_parameters},
    platform::{
        access::Access,
        error::Error,
        http::{Endpoint, Json, Tag, Verb, mount, openapi::document},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this slice.
pub static ENDPOINTS: &[&Endpoint] = &[&COMPATIBILITY, &DOCUMENT, &PAGE, &ASSET];

static COMPATIBILITY: Endpoint = Endpoint {
    id: "gantry-compatibility",
    summary: "List every operation and whether it is implemented",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/v1/compatibility",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(compatibility),
};

async fn compatibility() -> Result<Json<Vec<Compatibility>>, Error> {
    Ok(Json(super::compatibility()))
}

static DOCUMENT: Endpoint = Endpoint {
    id: "gantry-openapi-document",
    summary: "Get this document",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/api/v1-json",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(openapi_document),
};

async fn openapi_document(context: ApiContext) -> Result<Json<Map<String, Value>>, Error> {
    let Value::Object(document) = document(endpoints::all(), &context.settings.links) else {
        return Ok(Json(Map::new()));
    };
    Ok(Json(document))
}

static PAGE: Endpoint = Endpoint {
    id: "gantry-reference-page",
    summary: "Get the API reference page",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/docs",
    aliases: &["/api/v1"],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(page),
};

async fn page() -> Result<assets::Asset, Error> {
    assets::page()
}

static ASSET: Endpoint = Endpoint {
    id: "gantry-reference-asset",
    summary: "Get a script or style sheet of the reference page",
    tag: Tag::Gantry,
    method: Verb::Get,
    path: "/docs/{file}",
    aliases: &[],
    access: Access::Public,
    limit: &STANDARD,
    handler: || mount(asset),
};

path_parameters! {
    /// The name of an embedded file.
    struct AssetName(String) from "file", else Error::NotFound;
}

async fn asset(AssetName(name): AssetName) -> Result<assets::Asset, Error> {
    assets::file(&name).await
}
