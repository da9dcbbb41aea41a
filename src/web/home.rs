//! The first page: one's organizations and projects.

use askama::Template;

use super::{
    Answer, Frame, Visitor, next, page,
    places::{Place, places},
};
use crate::{
    error::Error,
    http::{Access, Endpoint, Verb, mount},
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
