//! What was done in an organization, and by whom.

use std::collections::HashMap;

use askama::Template;
use http::Method;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Head;
use crate::{
    api::endpoints,
    base::{
        error::{Context, Error},
        ids::OrgSlug,
    },
    platform::{
        access::Access,
        audit::{Entry, read::EXPORT_MAX},
        http::{Endpoint, Query, Verb, mount},
    },
    web::{Answer, Frame, Visitor, named::InOrganization, page, pages, words::Moment},
};

pub(in crate::web) static LOG: Endpoint = page(
    "page-audit",
    "Audit log",
    Verb::Get,
    "/organizations/{organization}/audit",
    Access::Caller,
    || mount(log),
);
pub(in crate::web) static EXPORT: Endpoint = page(
    "page-audit-export",
    "Export the audit log",
    Verb::Get,
    "/organizations/{organization}/audit/export",
    Access::Caller,
    || mount(export),
);

/// Entries on one page.
const PAGE: usize = 50;
/// Answers of the export that become one file: of a thousand entries each.
const PARTS_MAX: usize = 50;

/// What is looked for. A field that was left empty is sent all the same.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Filter {
    before: String,
    actor: String,
    operation: String,
    subject: String,
    outcome: String,
}

impl Filter {
    /// As the operation wants it.
    fn query(&self) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &PAGE.to_string());
        let succeeded = match self.outcome.as_str() {
            "done" => "true",
            "refused" => "false",
            _ => "",
        };
        let fields = [
            ("before", &*self.before),
            ("actor", &*self.actor),
            ("operation", &*self.operation),
            ("subject", &*self.subject),
            ("succeeded", succeeded),
        ];
        for (name, value) in fields {
            if !value.trim().is_empty() {
                query.append_pair(name, value.trim());
            }
        }
        query.finish()
    }

    /// The same entries, from the one before this number on.
    fn from(&self, before: i64) -> String {
        let before = before.to_string();
        let fields = [
            ("actor", &*self.actor),
            ("operation", &*self.operation),
            ("subject", &*self.subject),
            ("outcome", &*self.outcome),
            ("before", &*before),
        ];
        form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()))
            .finish()
    }

    fn is_set(&self) -> bool {
        [&self.actor, &self.operation, &self.subject, &self.outcome]
            .iter()
            .any(|field| !field.is_empty())
    }
}

#[derive(Deserialize)]
struct Found {
    entries: Vec<Entry>,
    before: Option<i64>,
}

#[derive(Deserialize)]
struct Person {
    user_id: String,
    email: String,
}

/// An entry, as a page shows it.
struct Row {
    entry: Entry,
    at: Moment,
    who: String,
    what: &'static str,
}

impl Row {
    fn new(entry: Entry, people: &HashMap<&str, &str>, at: Moment) -> Self {
        let id = entry.actor.to_string();
        let who = match people.get(id.as_str()) {
            Some(email) => (*email).to_owned(),
            None if entry.actor.is_nil() => "Operator of this server".to_owned(),
            None => format!("Former member {id}"),
        };
        let what = endpoints::all()
            .iter()
            .chain(pages())
            .find(|it| it.id == entry.operation)
            .map_or("", |it| it.summary);
        Self {
            entry,
            at,
            who,
            what,
        }
    }

    /// How it ended, and how that is marked.
    fn outcome(&self) -> (&'static str, &'static str) {
        match self.entry.status {
            102 => ("Begun", "idle"),
            ..400 => ("Done", "good"),
            400..500 => ("Refused", "bad"),
            _ => ("Failed", "bad"),
        }
    }

    /// With what it was done.
    fn with(&self) -> String {
        match self.entry.token {
            0 => "The pages".to_owned(),
            token => format!("Token {token}"),
        }
    }
}

/// JSON as a person can read it.
fn readable(json: &RawValue) -> String {
    let value = serde_json::from_str::<serde_json::Value>(json.get());
    value
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| json.get().to_owned())
}

#[derive(Template)]
#[template(path = "audit.html")]
struct Log {
    frame: Frame,
    head: Head,
    /// Why nothing is shown.
    hidden: Option<String>,
    people: Vec<Person>,
    filter: Filter,
    rows: Vec<Row>,
    older: Option<String>,
}

impl Log {
    fn readable(json: &RawValue) -> String {
        readable(json)
    }
}

async fn log(
    visitor: Visitor,
    InOrganization(slug): InOrganization,
    Query(filter): Query<Filter>,
) -> Result<Answer, Error> {
    let head = Head::of(&visitor, slug).await?;
    let (path, now) = (
        format!("/v1/organizations/{}/audit", head.slug),
        visitor.context.clock.now(),
    );
    let may = visitor.may("GET", &path).await?;
    let frame = visitor.frame();
    if !may.yes() {
        let hidden = Some(may.why().to_owned());
        return Answer::page(&Log {
            frame,
            head,
            hidden,
            people: Vec::new(),
            filter,
            rows: Vec::new(),
            older: None,
        });
    }
    let people: Vec<Person> = visitor
        .get(&format!("/v1/organizations/{}/members", head.slug))
        .await?;
    let Found { entries, before } = visitor.get(&format!("{path}?{}", filter.query())).await?;
    let known: HashMap<_, _> = people
        .iter()
        .map(|person| (person.user_id.as_str(), person.email.as_str()))
        .collect();
    let row = |entry: Entry| {
        let at = Moment::new(entry.at, now);
        Row::new(entry, &known, at)
    };
    let rows = entries.into_iter().map(row).collect();
    let older =
        before.map(|before| format!("/organizations/{}/audit?{}", head.slug, filter.from(before)));
    Answer::page(&Log {
        frame,
        head,
        hidden: None,
        people,
        filter,
        rows,
        older,
    })
}

/// The whole log from its beginning, as `gantry audit verify` wants it, up to a bound.
async fn export(visitor: Visitor, InOrganization(slug): InOrganization) -> Result<Answer, Error> {
    let (mut lines, mut after) = (Vec::new(), 0);
    for _ in 0..PARTS_MAX {
        let part = part(&visitor, &slug, after).await?;
        lines.extend_from_slice(&part);
        let Some(last) = last_number(&part)? else {
            break;
        };
        if last - after < EXPORT_MAX {
            break;
        }
        after = last;
    }
    Answer::file(
        &format!("audit-{slug}.ndjson"),
        "application/x-ndjson",
        lines,
    )
}

async fn part(visitor: &Visitor, slug: &OrgSlug, after: i64) -> Result<bytes::Bytes, Error> {
    visitor
        .answer(
            Method::GET,
            &format!("/v1/organizations/{slug}/audit/export?after={after}"),
            None,
        )
        .await
}

fn last_number(lines: &[u8]) -> Result<Option<i64>, Error> {
    #[derive(Deserialize)]
    struct Numbered {
        number: i64,
    }
    let Some(last) = lines
        .split(|byte| *byte == b'\n')
        .rfind(|line| !line.is_empty())
    else {
        return Ok(None);
    };
    serde_json::from_slice::<Numbered>(last)
        .map(|it| Some(it.number))
        .context("reading an exported entry")
}
