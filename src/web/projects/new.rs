//! Making a project.

use askama::Template;
use http::{Method, StatusCode};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::{
    base::{clock::Entropy, error::Error, ids::ProjectRef},
    platform::{
        access::Access,
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Form, Frame, Visitor, page, places, places::Organization},
};

pub(in crate::web) static NEW: Endpoint = page(
    "page-new-project",
    "New project",
    Verb::Get,
    "/projects/new",
    Access::Caller,
    || mount(new),
);
pub(in crate::web) static CREATE: Endpoint = page(
    "page-create-project",
    "Make a project",
    Verb::Post,
    "/projects/new",
    Access::Caller,
    || mount(create),
);

/// Organizations that are asked whether one may be made there; who belongs to more chooses among the rest all the same.
const ASKED_MAX: usize = 50;

/// What was filled in.
#[derive(Deserialize)]
struct Wanted {
    name: String,
    #[serde(default)]
    organization: String,
    region: String,
    password: String,
}

/// What is wrong with it.
#[derive(Default)]
struct Wrong {
    name: Option<String>,
    organization: Option<String>,
    region: Option<String>,
    password: Option<String>,
    other: Option<String>,
}

/// Where it can be made.
struct Choice {
    organization: Organization,
    /// Why not there.
    refusal: Option<String>,
}

/// A region, as the operation lists them.
#[derive(Deserialize)]
struct Region {
    code: String,
    name: String,
}

#[derive(Deserialize)]
struct Regions {
    all: AllRegions,
}

#[derive(Deserialize)]
struct AllRegions {
    specific: Vec<Region>,
}

#[derive(Template)]
#[template(path = "project_new.html")]
struct Page {
    frame: Frame,
    choices: Vec<Choice>,
    regions: Vec<Region>,
    wanted: Wanted,
    wrong: Wrong,
}

impl Page {
    fn possible(&self) -> bool {
        self.choices.iter().any(|choice| choice.refusal.is_none())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Where {
    organization: Option<String>,
}

async fn new(visitor: Visitor, Query(place): Query<Where>) -> Result<Answer, Error> {
    let password = suggestion(&visitor.context.entropy);
    let wanted = Wanted {
        name: String::new(),
        organization: place.organization.unwrap_or_default(),
        region: "eu-central-1".to_owned(),
        password,
    };
    show(&visitor, StatusCode::OK, wanted, Wrong::default()).await
}

async fn show(
    visitor: &Visitor,
    status: StatusCode,
    wanted: Wanted,
    wrong: Wrong,
) -> Result<Answer, Error> {
    let mut choices = Vec::new();
    for (number, organization) in places::organizations(visitor)
        .await?
        .into_iter()
        .enumerate()
    {
        let refusal = if number < ASKED_MAX {
            let body = json!({"organization_slug": organization.slug}).to_string();
            let may = visitor.may_send("POST", "/v1/projects", &body).await?;
            (!may.yes()).then(|| may.why().to_owned())
        } else {
            None
        };
        choices.push(Choice {
            organization,
            refusal,
        });
    }
    let regions = match choices.first() {
        Some(first) => {
            let path = format!(
                "/v1/projects/available-regions?organization_slug={}",
                first.organization.slug
            );
            visitor.get::<Regions>(&path).await?.all.specific
        }
        None => Vec::new(),
    };
    let page = Page {
        frame: visitor.frame().of("/projects/new"),
        choices,
        regions,
        wanted,
        wrong,
    };
    Ok(Answer::page(&page)?.status(status))
}

#[derive(Deserialize)]
struct Made {
    #[serde(rename = "ref")]
    reference: ProjectRef,
}

async fn create(visitor: Visitor, Form(wanted): Form<Wanted>) -> Result<Answer, Error> {
    let name = wanted.name.trim();
    if wanted.organization.is_empty() {
        let wrong = Wrong {
            organization: Some("Choose an organization.".to_owned()),
            ..Wrong::default()
        };
        return show(&visitor, StatusCode::UNPROCESSABLE_ENTITY, wanted, wrong).await;
    }
    let body = json!({"name": name, "organization_slug": wanted.organization, "region": wanted.region, "db_pass": wanted.password});
    let wrong = match visitor
        .ask::<Made>(Method::POST, "/v1/projects", Some(&body))
        .await
    {
        Ok(made) => return Answer::to(&format!("/projects/{}?done=created", made.reference)),
        Err(Error::Invalid { field, problem }) => {
            let (said, mut wrong) = (
                Some(format!("This does not fit: {problem}.")),
                Wrong::default(),
            );
            match &*field {
                "name" => wrong.name = said,
                "db_pass" => wrong.password = said,
                "region" => wrong.region = said,
                _ => wrong.other = said,
            }
            wrong
        }
        Err(Error::Rejected(text)) => Wrong {
            other: Some(format!("{text}.")),
            ..Wrong::default()
        },
        Err(error) => return Err(error),
    };
    show(&visitor, StatusCode::UNPROCESSABLE_ENTITY, wanted, wrong).await
}

/// What no two people read differently.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

/// A password that nobody guesses: 120 random bits.
fn suggestion(entropy: &Entropy) -> String {
    entropy
        .bytes::<24>()
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 32)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_differ_and_can_be_read_aloud() {
        let entropy = Entropy::seeded(3);
        let (one, other) = (suggestion(&entropy), suggestion(&entropy));
        assert!(
            one != other && one.len() == 24 && one.bytes().all(|letter| LETTERS.contains(&letter))
        );
        assert!(!one.contains(['0', 'o', '1', 'l']));
    }
}
