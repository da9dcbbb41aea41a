//! Comparison of a branch with its parent.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{branch_row::find, target::BranchTarget, text::PlainText};
use crate::{
    api::context::ApiContext,
    control::{
        projects,
        services::schema_diff::{self, SchemaPair},
    },
    platform::{
        access::{OauthScope as S, Permission as P, Project, needs},
        error::Error,
        http::{Endpoint, Query, Tag, Verb, mount},
        rate_limits::STANDARD,
    },
};

/// Endpoints of this part of the slice.
pub static ENDPOINTS: &[&Endpoint] = &[&DIFF];

/// Maximum number of schemas in a request.
const SCHEMAS_MAX: usize = 100;
/// Maximum length of a schema's name, in bytes: that of PostgreSQL.
const SCHEMA_BYTES_MAX: usize = 63;

static DIFF: Endpoint = Endpoint {
    id: "v1-diff-a-branch",
    summary: "Compare a branch with its parent",
    tag: Tag::Environments,
    method: Verb::Get,
    path: "/v1/branches/{branch_id_or_ref}/diff",
    aliases: &[],
    access: needs(
        &[
            &[P::BranchingDevelopmentWrite],
            &[P::BranchingProductionWrite],
        ],
        S::EnvironmentWrite,
    ),
    limit: &STANDARD,
    handler: || mount(diff),
};

#[derive(Debug, Deserialize, JsonSchema)]
struct DiffQuery {
    /// Names of the schemas to compare, separated by commas. Absent: all that belong to the
    /// project.
    included_schemas: Option<String>,
    /// Accepted and ignored: there is one engine.
    #[expect(dead_code, reason = "accepted from clients")]
    pgdelta: Option<bool>,
}

impl DiffQuery {
    fn schemas(&self) -> Result<Option<Vec<String>>, Error> {
        let Some(text) = self.included_schemas.as_deref() else {
            return Ok(None);
        };
        let names = text.split(',').map(str::trim);
        let names: Vec<String> = names
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let is_valid = |name: &String| {
            name.len() <= SCHEMA_BYTES_MAX
                // A pattern of the engine.
                && !name.contains('*')
                && !name.chars().any(char::is_control)
        };
        if names.len() > SCHEMAS_MAX || !names.iter().all(is_valid) {
            let problem = "expected at most 100 names of schemas, separated by commas";
            return Err(Error::invalid("included_schemas", problem));
        }
        Ok((!names.is_empty()).then_some(names))
    }
}

async fn diff(
    project: Project,
    context: ApiContext,
    target: BranchTarget,
    Query(query): Query<DiffQuery>,
) -> Result<PlainText, Error> {
    let schemas = query.schemas()?;
    let branch = find(&context, &project, &target).await?;
    if branch.is_default {
        return Ok(PlainText(String::new()));
    }
    let pair = SchemaPair {
        project: branch.project.reference.clone(),
        source: projects::target(&context, &branch.parent).await?,
        desired: projects::target(&context, &branch.project).await?,
        schemas,
    };
    Ok(PlainText(schema_diff::compare(&context, &pair).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas(text: Option<&str>) -> Result<Option<Vec<String>>, Error> {
        let query = DiffQuery {
            included_schemas: text.map(str::to_owned),
            pgdelta: None,
        };
        query.schemas()
    }

    #[test]
    fn schemas_are_separated_by_commas() {
        let of = |text| schemas(Some(text)).unwrap();
        assert_eq!(schemas(None).unwrap(), None);
        assert_eq!(of(" , "), None);
        assert_eq!(of("public, Ä b"), Some(vec!["public".into(), "Ä b".into()]));
        for bad in ["pub*", "a\nb", &"x".repeat(64), &"x,".repeat(101)] {
            assert!(schemas(Some(bad)).is_err(), "{bad}");
        }
    }
}
