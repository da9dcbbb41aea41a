//! The first page: one's organizations and projects.

use askama::Template;

use crate::{
    base::error::Error,
    platform::{
        access::Access,
        http::{Endpoint, Verb, mount},
    },
    web::{
        Answer, Frame, Visitor, next, page,
        places::{Place, places},
    },
};

pub(super) static HOME: Endpoint = page(
    "page-home",
    "Organizations and projects",
    Verb::Get,
    next::HOME,
    Access::Caller,
    || mount(home),
);

#[derive(Template)]
#[template(path = "home.html")]
struct Home {
    frame: Frame,
    places: Vec<Place>,
}

async fn home(visitor: Visitor) -> Result<Answer, Error> {
    let places = places(&visitor).await?;
    Answer::page(&Home {
        frame: visitor.frame(),
        places,
    })
}
