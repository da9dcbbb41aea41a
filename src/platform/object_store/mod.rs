//! A client for object stores with the S3 protocol, limited to the operations that logs need.
//!
//! Requests are signed here and sent with the HTTP client of the service proxy. Objects are bounded
//! in size, so each is transferred in one request. All requests are idempotent, so they may be
//! retried.

mod client;
mod failure;
mod listing;
mod options;
mod sign;

use std::{fmt, io, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use gantry_base::{
    clock::{Clock, Entropy},
    net::outbound::OutboundPolicy,
};
use gantry_logs::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, path::Path,
};
use hyper::{HeaderMap, Method, StatusCode, header};

pub use self::{
    client::RequestTimeouts,
    failure::Failure,
    options::{Flags, Place, PlaceError, Style},
    sign::Credentials,
};
use self::{
    client::{Answer, Ask, Client},
    failure::{Kind, STORE},
    listing::{Object, Page},
};

/// Maximum size of an object. Log files are far smaller.
const OBJECT_BYTES_MAX: u64 = 256 << 20;
/// Maximum size of a listing page, which has at most a thousand keys.
const PAGE_BYTES_MAX: u64 = 8 << 20;
/// Maximum size of a response that only reports success or failure.
const WORDS_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of pages of a listing.
const PAGES_MAX: usize = 100_000;
/// Maximum number of concurrent deletions.
const REMOVED_AT_ONCE: usize = 8;

/// A prefix in a bucket.
#[derive(Clone)]
pub struct S3(Arc<Client>);

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("S3").field(&self.0.place).finish()
    }
}

impl fmt::Display for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = &self.0.place;
        let slash = if place.prefix.is_empty() { "" } else { "/" };
        write!(
            f,
            "s3://{}{slash}{} at {}",
            place.bucket, place.prefix, place.endpoint
        )
    }
}

/// Returns an error for a response that violates the protocol.
fn strange(what: impl fmt::Display) -> Failure {
    Failure::new(
        Kind::Refused,
        format!("the object store does not answer as S3 does: {what}"),
    )
}

fn not_needed(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

impl S3 {
    /// Creates a store without sending a request. Requests run on the current runtime.
    pub fn new(
        place: Place,
        clock: Clock,
        entropy: Entropy,
        patience: RequestTimeouts,
    ) -> io::Result<Self> {
        let policy = OutboundPolicy::unrestricted();
        Self::restricted(place, clock, entropy, patience, &policy)
    }

    /// As [`Self::new`], with connections to permitted addresses only.
    pub fn restricted(
        place: Place,
        clock: Clock,
        entropy: Entropy,
        patience: RequestTimeouts,
        policy: &OutboundPolicy,
    ) -> io::Result<Self> {
        let client = Client::new(place, clock, entropy, patience, policy)?;
        Ok(Self(Arc::new(client)))
    }

    /// Writes an object, replacing an earlier one.
    pub async fn replace(&self, path: &Path, body: Bytes) -> std::result::Result<(), Failure> {
        self.write(path, body).await.map(drop)
    }

    /// Checks that objects can be listed, written, read and deleted, with an object named after
    /// this node.
    pub async fn probe(&self, node: &str) -> std::result::Result<(), Failure> {
        let path = Path::from(format!("probe-{node}"));
        self.page("", None, None, Some("1")).await?;
        let said = Bytes::from(format!("{STORE} {node}\n"));
        self.write(&path, said.clone()).await?;
        match self.object(Method::GET, &path, None, WORDS_BYTES_MAX).await {
            Ok(read) if read.body == said => {}
            Err(failure) if failure.kind != Kind::Missing => return Err(failure),
            _ => {
                return Err(strange(
                    "what was written is not what is read right after it",
                ));
            }
        }
        self.remove(&path).await
    }

    /// Returns the key of an object.
    fn key(&self, path: &str) -> String {
        match self.0.place.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        }
    }

    /// Returns the object of a key, or `None` if the key is outside the prefix.
    fn path(&self, key: &str) -> Option<Path> {
        let rest = match self.0.place.prefix.as_str() {
            "" => key,
            prefix => key.strip_prefix(prefix)?.strip_prefix('/')?,
        };
        Path::parse(rest)
            .ok()
            .filter(|path| path.as_ref() == rest && !rest.is_empty())
    }

    async fn object(
        &self,
        method: Method,
        path: &Path,
        range: Option<&GetRange>,
        answer_max: u64,
    ) -> std::result::Result<Answer, Failure> {
        let key = self.key(path.as_ref());
        let range = range.map(|range| match range {
            GetRange::Bounded(range) => {
                format!("bytes={}-{}", range.start, range.end.saturating_sub(1))
            }
            GetRange::Offset(from) => format!("bytes={from}-"),
            GetRange::Suffix(count) => format!("bytes=-{count}"),
        });
        let ask = Ask {
            method,
            wanted: format!("read {key}"),
            key: &key,
            query: &[],
            range,
            body: Bytes::new(),
            answer_max,
        };
        self.0.send(&ask).await
    }

    async fn write(&self, path: &Path, body: Bytes) -> std::result::Result<HeaderMap, Failure> {
        let key = self.key(path.as_ref());
        let wanted = format!("write {key}");
        let ask = Ask {
            method: Method::PUT,
            wanted,
            key: &key,
            query: &[],
            range: None,
            body,
            answer_max: WORDS_BYTES_MAX,
        };
        Ok(self.0.send(&ask).await?.headers)
    }

    async fn remove(&self, path: &Path) -> std::result::Result<(), Failure> {
        let key = self.key(path.as_ref());
        let wanted = format!("remove {key}");
        let ask = Ask {
            method: Method::DELETE,
            wanted,
            key: &key,
            query: &[],
            range: None,
            body: Bytes::new(),
            answer_max: WORDS_BYTES_MAX,
        };
        match self.0.send(&ask).await {
            // Not found: an earlier attempt may have deleted it before its response was lost.
            Err(Failure {
                kind: Kind::Missing,
                ..
            }) => Ok(()),
            done => done.map(drop),
        }
    }

    /// Requests one page of a folder. Its name is empty or ends with a slash.
    async fn page(
        &self,
        folder: &str,
        delimiter: Option<&str>,
        from: Option<Start<'_>>,
        max: Option<&str>,
    ) -> std::result::Result<Page, Failure> {
        let prefix = self.key(folder);
        let mut query = vec![("list-type", "2")];
        query.extend((!prefix.is_empty()).then_some(("prefix", prefix.as_str())));
        query.extend(delimiter.map(|it| ("delimiter", it)));
        query.extend(max.map(|it| ("max-keys", it)));
        query.extend(from.map(|from| match from {
            Start::Token(token) => ("continuation-token", token),
            Start::After(key) => ("start-after", key),
        }));
        query.sort_unstable();
        let wanted = format!("list {}", if prefix.is_empty() { "all" } else { &prefix });
        let ask = Ask {
            method: Method::GET,
            wanted,
            key: "",
            query: &query,
            range: None,
            body: Bytes::new(),
            answer_max: PAGE_BYTES_MAX,
        };
        listing::page(&self.0.send(&ask).await?.body).map_err(strange)
    }

    /// Requests all pages of a folder, starting after an object.
    fn pages(
        &self,
        prefix: Option<&Path>,
        delimiter: Option<&'static str>,
        after: Option<&Path>,
    ) -> BoxStream<'static, Result<Page>> {
        let folder = prefix
            .filter(|path| !path.as_ref().is_empty())
            .map_or_else(String::new, |path| format!("{path}/"));
        let after = after.map(|path| self.key(path.as_ref()));
        let this = self.clone();
        let pages = stream::try_unfold((Some(None::<String>), 0), move |(at, count)| {
            let this = this.clone();
            let folder = folder.clone();
            let after = after.clone();
            async move {
                let Some(token) = at else { return Ok(None) };
                let from = token
                    .as_deref()
                    .map(Start::Token)
                    .or(after.as_deref().map(Start::After));
                let page = this
                    .page(&folder, delimiter, from, None)
                    .await
                    .map_err(|failure| failure.about(&folder))?;
                let next = match (page.is_truncated, &page.next_continuation_token) {
                    (false, _) => None,
                    (true, Some(next)) if Some(next) != token.as_ref() && count < PAGES_MAX => {
                        Some(Some(next.clone()))
                    }
                    (true, _) => return Err(strange("a list does not go on").about(&folder)),
                };
                Ok(Some((page, (next, count + 1))))
            }
        });
        pages.boxed()
    }

    fn metas(
        &self,
        pages: BoxStream<'static, Result<Page>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        let metas = pages.map_ok(move |page| {
            let metas: Vec<_> = page
                .contents
                .into_iter()
                .filter_map(|object| this.meta(object))
                .map(Ok)
                .collect();
            stream::iter(metas)
        });
        metas.try_flatten().boxed()
    }

    /// Returns the metadata of a listed object, or `None` if its key is outside the prefix.
    fn meta(&self, object: Object) -> Option<ObjectMeta> {
        let location = self.path(&object.key)?;
        let last_modified = DateTime::parse_from_rfc3339(&object.last_modified)
            .map_or(DateTime::UNIX_EPOCH, |at| at.to_utc());
        Some(ObjectMeta {
            location,
            last_modified,
            size: object.size,
            e_tag: object.e_tag,
            version: None,
        })
    }
}

/// Position of a page.
enum Start<'a> {
    Token(&'a str),
    After(&'a str),
}

/// Returns a header as text.
fn text<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the size of the object and the range of the body. `None` means that the response headers
/// contradict each other.
fn parts(answer: &Answer, head: bool) -> Option<(u64, std::ops::Range<u64>)> {
    let length = answer.body.len() as u64;
    if head {
        let size = text(&answer.headers, &header::CONTENT_LENGTH)?
            .parse()
            .ok()?;
        return Some((size, 0..size));
    }
    if answer.status != StatusCode::PARTIAL_CONTENT {
        return Some((length, 0..length));
    }
    let (range, size) = text(&answer.headers, &header::CONTENT_RANGE)?
        .strip_prefix("bytes ")?
        .split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last, size): (u64, u64, u64) =
        (first.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    (first <= last && last < size && last - first + 1 == length).then_some((size, first..last + 1))
}

#[async_trait]
impl ObjectStore for S3 {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        if options != PutOptions::default() {
            return Err(not_needed(
                "putting on a condition, with tags or attributes",
            ));
        }
        let body = Bytes::from(payload);
        if body.len() as u64 > OBJECT_BYTES_MAX {
            return Err(not_needed("putting more than 256 MiB"));
        }
        let headers = self
            .write(location, body)
            .await
            .map_err(|failure| failure.about(location))?;
        Ok(PutResult {
            e_tag: text(&headers, &header::ETAG).map(str::to_owned),
            version: None,
        })
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(not_needed("putting in parts"))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let GetOptions {
            if_match,
            if_none_match,
            if_modified_since,
            if_unmodified_since,
            range,
            version,
            head,
            ..
        } = options;
        if if_match.or(if_none_match).or(version).is_some()
            || if_modified_since.or(if_unmodified_since).is_some()
        {
            return Err(not_needed("reading on a condition"));
        }
        let generic = |error| Error::Generic {
            store: STORE,
            source: error,
        };
        if let Some(range) = &range {
            range.is_valid().map_err(|error| generic(Box::new(error)))?;
        }
        let method = if head { Method::HEAD } else { Method::GET };
        let asked = range.as_ref().filter(|_| !head);
        let answer = self
            .object(method, location, asked, OBJECT_BYTES_MAX)
            .await
            .map_err(|failure| failure.about(location))?;
        let strange = |what: &str| strange(what).about(location);
        let (size, mut there) =
            parts(&answer, head).ok_or_else(|| strange("an answer is no part of an object"))?;
        let mut body = answer.body;
        if let Some(range) = asked {
            let wanted = range
                .as_range(size)
                .map_err(|error| generic(Box::new(error)))?;
            if there != wanted {
                // The store may return a larger range than requested.
                if there.start > wanted.start || there.end < wanted.end {
                    return Err(strange("an answer is another part than was asked for"));
                }
                let at = |offset: u64| usize::try_from(offset - there.start).unwrap_or(usize::MAX);
                body = body.slice(at(wanted.start)..at(wanted.end));
                there = wanted;
            }
        }
        let modified = text(&answer.headers, &header::LAST_MODIFIED)
            .and_then(|at| DateTime::parse_from_rfc2822(at).ok());
        let meta = ObjectMeta {
            location: location.clone(),
            last_modified: modified.map_or(DateTime::<Utc>::UNIX_EPOCH, |at| at.to_utc()),
            size,
            e_tag: text(&answer.headers, &header::ETAG).map(str::to_owned),
            version: None,
        };
        let payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
        Ok(GetResult {
            payload,
            meta,
            range: there,
            attributes: Attributes::default(),
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let remove = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                this.remove(&location)
                    .await
                    .map_err(|failure| failure.about(&location))?;
                Ok(location)
            }
        };
        locations.map(remove).buffered(REMOVED_AT_ONCE).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.metas(self.pages(prefix, None, None))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.metas(self.pages(prefix, None, Some(offset)))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut pages = self.pages(prefix, Some("/"), None);
        let mut found = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
        };
        while let Some(page) = pages.try_next().await? {
            found.objects.extend(
                page.contents
                    .into_iter()
                    .filter_map(|object| self.meta(object)),
            );
            found.common_prefixes.extend(
                page.common_prefixes
                    .iter()
                    .filter_map(|it| self.path(it.prefix.strip_suffix('/')?)),
            );
        }
        Ok(found)
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(not_needed("copying"))
    }
}
