//! The endpoints of an organization or project, and the form of a new one.

use askama::Template;
use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    fields::{EndpointForm, TypeOption},
    place::{EndpointEntry, Enveloped, Listed, WebhookHome, WebhookPlace},
};
use crate::{
    platform::error::Error,
    web::{
        form,
        page::{Layout, PageResponse, SessionForm, Visitor},
        permissions::PermissionCheck,
    },
};

#[derive(Template)]
#[template(path = "webhooks.html")]
struct Page {
    layout: Layout,
    place: WebhookHome,
    /// The reason that the visitor may not list endpoints.
    hidden: Option<String>,
    can_change: PermissionCheck,
    endpoints: Vec<EndpointEntry>,
    form: EndpointForm,
    types: Vec<TypeOption>,
    /// A random secret for a new endpoint.
    secret: String,
    problem: Option<String>,
}

pub(super) async fn show<P: WebhookPlace>(
    visitor: Visitor,
    place: P,
) -> Result<PageResponse, Error> {
    render(&visitor, &place, EndpointForm::default(), None).await
}

/// Creates an endpoint.
pub(super) async fn create<P: WebhookPlace>(
    visitor: Visitor,
    SessionForm(fields): SessionForm<Vec<(String, String)>>,
    place: P,
) -> Result<PageResponse, Error> {
    let form = EndpointForm::parse(fields);
    let target = place.load(&visitor).await?;
    let path = target.operation("endpoints");
    match visitor
        .post::<Enveloped<EndpointEntry>>(&path, &form.body())
        .await
    {
        Ok(created) => {
            let path = target.path(&format!("/{}?done=created", created.data.id));
            PageResponse::redirect(&path)
        }
        Err(error) => render(&visitor, &place, form, Some(form::problem(error)?)).await,
    }
}

async fn render<P: WebhookPlace>(
    visitor: &Visitor,
    place: &P,
    form: EndpointForm,
    problem: Option<String>,
) -> Result<PageResponse, Error> {
    let place = place.load(visitor).await?;
    let path = place.operation("endpoints");
    let can_list = visitor.check("GET", &path).await?;
    let endpoints = if can_list.is_allowed() {
        visitor.get::<Listed<EndpointEntry>>(&path).await?.data
    } else {
        Vec::new()
    };
    let random = visitor.context.entropy.bytes::<24>();
    let page = Page {
        layout: visitor.layout().at_path(&place.path("")),
        hidden: can_list.refusal(),
        can_change: place.can_change(visitor).await?,
        endpoints,
        types: form.options(&place),
        form,
        secret: format!("whsec_{}", BASE64_STANDARD.encode(random)),
        problem,
        place,
    };
    PageResponse::form(&page, page.problem.is_some())
}
