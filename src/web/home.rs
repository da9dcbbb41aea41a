//! The home page: the organizations and projects of the visitor.

use askama::Template;

use crate::{
    platform::{
        error::Error,
        http::{Endpoint, Verb, mount},
    },
    web::{
        page::{Layout, PageResponse, Visitor, page},
        redirect,
        resources::{OrganizationProjects, organizations_with_projects},
    },
};

pub(super) static HOME: Endpoint = page(
    "page-home",
    "Organizations and projects",
    Verb::Get,
    redirect::HOME,
    || mount(home),
);

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage {
    layout: Layout,
    organizations: Vec<OrganizationProjects>,
}

async fn home(visitor: Visitor) -> Result<PageResponse, Error> {
    let organizations = organizations_with_projects(&visitor).await?;
    PageResponse::page(&HomePage {
        layout: visitor.layout(),
        organizations,
    })
}
