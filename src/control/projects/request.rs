//! The body of `POST /v1/projects`, and its validation.

use gantry_node::engines::{Engine, Engines};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};

use super::{
    InstanceSize,
    regions::{AvailableRegions, Region, SmartGroup},
};
use crate::{
    control::projects::new_table_grants::NewTableGrants,
    platform::{
        error::{Context, Error},
        names,
    },
};

/// The body, as sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "V1CreateProjectBody")]
pub(crate) struct CreateRequest {
    /// Password of the role `postgres`.
    #[serde(deserialize_with = "secret")]
    #[schemars(with = "String")]
    db_pass: SecretString,
    #[schemars(length(min = 1, max = 256))]
    name: String,
    /// Slug of the organization the project will belong to.
    #[schemars(required, with = "String", regex(pattern = r"^[\w-]+$"))]
    #[expect(
        dead_code,
        reason = "the guard reads it, as the request is counted and permitted by it"
    )]
    organization_slug: Option<String>,
    /// Older spelling of `organization_slug`.
    #[schemars(extend("deprecated" = true))]
    #[expect(
        dead_code,
        reason = "the guard reads it, as the request is counted and permitted by it"
    )]
    organization_id: Option<String>,
    /// Accepted and ignored: nothing is billed here.
    #[schemars(extend("deprecated" = true))]
    #[expect(dead_code, reason = "accepted from older clients")]
    plan: Option<Plan>,
    #[schemars(with = "Option<Region>", extend("deprecated" = true))]
    region: Option<String>,
    region_selection: Option<RegionSelection>,
    /// Accepted and ignored.
    #[schemars(extend("deprecated" = true))]
    #[expect(dead_code, reason = "accepted from older clients")]
    kps_enabled: Option<bool>,
    desired_instance_size: Option<InstanceSize>,
    template_url: Option<String>,
    postgres_engine: Option<String>,
    release_channel: Option<String>,
    high_availability: Option<bool>,
    /// Grants to `anon`, `authenticated` and `service_role` on new objects in `public`. The default
    /// is the server's.
    #[schemars(extend("x-gantry" = true))]
    new_table_grants: Option<NewTableGrants>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Plan {
    Free,
    Pro,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase")]
enum RegionSelection {
    Specific { code: Region },
    SmartGroup { code: SmartGroup },
}

pub(crate) fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

/// A validated request for a new project.
#[derive(Debug)]
pub struct NewProject {
    /// Display name.
    pub name: String,
    /// Region.
    pub region: Region,
    /// Compute size.
    pub size: InstanceSize,
    /// PostgreSQL version.
    pub engine: Engine,
    /// Grants on new objects in `public`.
    pub new_table_grants: NewTableGrants,
    password: SecretString,
}

impl CreateRequest {
    /// Validates the body against the installed versions, with the server's default of
    /// `new_table_grants` and with the regions of the nodes. Rejects options that are not
    /// supported.
    pub(crate) fn check(
        self,
        engines: &Engines,
        new_table_grants: NewTableGrants,
        regions: &AvailableRegions,
    ) -> Result<NewProject, Error> {
        names::check("name", &self.name, 256)?;
        if !(1..=256).contains(&self.db_pass.expose_secret().len()) {
            return Err(Error::invalid("db_pass", "expected 1 to 256 bytes"));
        }
        if self.template_url.is_some() {
            return Err(Error::invalid(
                "template_url",
                "is not supported by this server; apply a migration instead",
            ));
        }
        if self.high_availability == Some(true) {
            return Err(Error::invalid(
                "high_availability",
                "is not available on this server",
            ));
        }
        let engine = choose(
            engines,
            self.postgres_engine.as_deref(),
            self.release_channel.as_deref(),
        )?;
        let region = match (self.region, self.region_selection) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "region",
                    "give either region or region_selection",
                ));
            }
            (Some(code), None) => find_region(&code)?,
            (None, Some(RegionSelection::Specific { code })) => code,
            (None, Some(RegionSelection::SmartGroup { code })) => regions.of_group(code),
            (None, None) => regions.default(),
        };
        let size = self.desired_instance_size.unwrap_or(InstanceSize::Nano);
        Ok(NewProject {
            name: self.name,
            region,
            size,
            engine,
            new_table_grants: self.new_table_grants.unwrap_or(new_table_grants),
            password: self.db_pass,
        })
    }
}

/// The first of the offered installations, the default before all others, that has the major
/// version and release channel.
fn choose(engines: &Engines, major: Option<&str>, channel: Option<&str>) -> Result<Engine, Error> {
    let refused = |field, wanted: &str, available: Vec<String>| {
        Err(Error::invalid(
            field,
            format!(
                "{wanted} is not offered here; available: {}",
                available.join(", ")
            ),
        ))
    };
    let of_major = |engine: &&Engine| major.is_none_or(|major| engine.major().to_string() == major);
    let of_channel = |engine: &&Engine| channel.is_none_or(|channel| engine.channel() == channel);
    let fits: Vec<&Engine> = engines.offered().iter().filter(of_major).collect();
    if fits.is_empty() {
        return refused(
            "postgres_engine",
            major.unwrap_or_default(),
            engines
                .offered()
                .iter()
                .map(|engine| engine.major().to_string())
                .collect(),
        );
    }
    if let Some(engine) = fits.iter().copied().find(of_channel) {
        return Ok(engine.clone());
    }
    let mut channels: Vec<_> = fits
        .iter()
        .map(|engine| engine.channel().to_owned())
        .collect();
    channels.dedup();
    refused("release_channel", channel.unwrap_or_default(), channels)
}

fn find_region(code: &str) -> Result<Region, Error> {
    let found = Region::of_code(code);
    found.ok_or_else(|| Error::invalid("region", "Need to use one of available regions."))
}

impl NewProject {
    pub(crate) async fn password_verifier(&self) -> Result<String, Error> {
        verifier(self.password.clone()).await
    }
}

/// Returns the SCRAM-SHA-256 verifier of a password (RFC 5803). Computed outside the event loop,
/// because it takes thousands of hashes.
pub async fn verifier(password: SecretString) -> Result<String, Error> {
    tokio::task::spawn_blocking(move || {
        postgres_protocol::password::scram_sha_256(password.expose_secret().as_bytes())
    })
    .await
    .context("making a password verifier")
}
