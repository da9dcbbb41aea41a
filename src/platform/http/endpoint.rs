//! An operation is a value: routing, access, limits, documents and tests all read the same declaration.

use std::{future::Future, pin::Pin, sync::Arc};

use super::{
    body::Response,
    input::{Call, Input},
    openapi::Described,
    output::Output,
};
use crate::{
    base::error::Error,
    platform::{access::Access, rate_limits::Limit},
};

/// One operation of the API.
pub struct Endpoint {
    /// Operation id of the contract; the name of its counter and its metrics.
    pub id: &'static str,
    /// One line for a reader of the reference.
    pub summary: &'static str,
    /// Group in the reference.
    pub tag: Tag,
    /// HTTP method.
    pub method: Verb,
    /// Path with `{placeholders}`: the specification's spelling where it has one.
    pub path: &'static str,
    /// Other spellings of the same operation. They share its counter and its permission.
    pub aliases: &'static [&'static str],
    /// Who may call it.
    pub access: Access,
    /// How often.
    pub limit: &'static Limit,
    /// Makes the handler, and what its signature says.
    pub handler: fn() -> Mounted,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

/// HTTP method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the methods of RFC 9110")]
pub enum Verb {
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    /// Whether requests have a body that says something.
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }

    /// As it stands in a request line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// Group of operations in the reference: the contract's tags, in the order a reader meets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each name is the tag's title")]
pub enum Tag {
    Organizations,
    Projects,
    Database,
    Domains,
    Analytics,
    Profile,
    OAuth,
    Secrets,
    Environments,
    Advisors,
    Auth,
    Rest,
    Realtime,
    Storage,
    EdgeFunctions,
    Compute,
    Notebooks,
    Billing,
    Webhooks,
    Gantry,
}

impl Tag {
    /// Title in the reference.
    pub fn title(self) -> String {
        match self {
            Self::EdgeFunctions => "Edge Functions".into(),
            other => format!("{other:?}"),
        }
    }
}

/// The handler of an operation, with what its signature says.
pub struct Mounted {
    pub(super) handle: Handle,
    pub(super) describe: fn(&mut Described),
    pub(super) effect: Effect,
    /// Of a request that works: query and body. Variables are those of `requests/`.
    pub sample: Sample,
    /// Whether it does what the contract says, or only answers 501.
    pub built: bool,
}

/// What a request that works has besides its path.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// With its `?`; empty if none is needed.
    pub query: &'static str,
    /// JSON, if the operation takes a body.
    pub body: Option<&'static str>,
}

/// Whether requests are for the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// As method and permissions say: what is neither a GET nor permitted by permissions that only let see.
    Usual,
    /// They change something, though what permits them only lets see.
    Changes,
    /// They change nothing, though they are not permitted by permissions that only let see.
    Sees,
    /// They change something where the log is not: it is announced first.
    ChangesElsewhere,
}

impl Mounted {
    /// The same with a body that works.
    #[must_use]
    pub fn sample(mut self, body: &'static str) -> Self {
        self.sample.body = Some(body);
        self
    }

    /// The same with a query that an operation cannot do without.
    #[must_use]
    pub fn sample_query(mut self, query: &'static str) -> Self {
        self.sample.query = query;
        self
    }

    /// The same for an operation that changes something though what permits it only lets see.
    #[must_use]
    pub fn that_changes(self) -> Self {
        Self {
            effect: Effect::Changes,
            ..self
        }
    }

    /// The same for an operation that changes nothing, whatever its method.
    #[must_use]
    pub fn that_only_sees(self) -> Self {
        Self {
            effect: Effect::Sees,
            ..self
        }
    }

    /// The same for an operation that changes what is not in the control database, so not together with the log: it is announced
    /// there before.
    #[must_use]
    pub fn that_changes_elsewhere(self) -> Self {
        Self {
            effect: Effect::ChangesElsewhere,
            ..self
        }
    }
}

/// Runs a handler on an admitted call.
pub(super) type Handle = Arc<dyn for<'a> Fn(Call<'a>) -> Answering<'a> + Send + Sync>;

/// A handler that runs.
pub(super) type Answering<'a> = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send + 'a>>;

/// The compiler sees that what runs may borrow from the call only where a signature says so.
fn handle(run: impl for<'a> Fn(Call<'a>) -> Answering<'a> + Send + Sync + 'static) -> Handle {
    Arc::new(run)
}

/// Mounts a handler: an async function of [`Input`]s that answers `Result<impl Output, Error>`.
pub fn mount<H: Handler<A>, A>(handler: H) -> Mounted {
    Mounted {
        handle: handle(move |call| handler.clone().run(call)),
        describe: H::describe,
        effect: Effect::Usual,
        sample: Sample::default(),
        built: true,
    }
}

/// Mounts the answer of an operation that is not built: 501 with this message, after every check of a built one.
pub fn not_built(message: String) -> Mounted {
    Mounted {
        handle: handle(move |_| {
            let error = Error::NotBuilt(message.clone());
            Box::pin(async move { Err(error) })
        }),
        describe: |_| (),
        effect: Effect::Usual,
        sample: Sample::default(),
        built: false,
    }
}

/// An async function whose arguments are [`Input`]s and whose answer is an [`Output`].
pub trait Handler<A>: Clone + Send + Sync + 'static {
    /// What the signature says about the operation.
    fn describe(described: &mut Described);
    /// Takes the arguments from the call, in order, and runs.
    fn run(self, call: Call<'_>) -> Answering<'_>;
}

macro_rules! handler {
    ($($arg:ident $name:ident),*) => {
        impl<F, Fut, R, $($arg),*> Handler<($($arg,)*)> for F
        where
            F: Fn($($arg),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<R, Error>> + Send + 'static,
            R: Output,
            $($arg: Input,)*
        {
            fn describe(described: &mut Described) {
                $($arg::describe(described);)*
                R::describe(described);
            }

            fn run(self, call: Call<'_>) -> Answering<'_> {
                Box::pin(async move {
                    let call = &mut { call };
                    $(let $name = $arg::take(call).await?;)*
                    // An operation without arguments still holds the call until it answers.
                    let _ = call;
                    Ok(self($($name),*).await?.respond())
                })
            }
        }
    };
}
handler!();
handler!(A a);
handler!(A a, B b);
handler!(A a, B b, C c);
handler!(A a, B b, C c, D d);
handler!(A a, B b, C c, D d, E e);
handler!(A a, B b, C c, D d, E e, G g);
