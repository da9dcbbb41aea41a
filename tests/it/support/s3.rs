//! A local object store with the used part of the S3 protocol. Verifies signatures and injects
//! faults.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    fmt::Write as _,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{self, Poll},
};

use aws_lc_rs::{digest, hmac};
use bytes::Bytes;
use gantry::platform::object_store::{Credentials, Place, Style};
use http_body_util::BodyExt;
use hyper::{
    Method, Request, Response,
    body::{Body, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{net::TcpListener, task::JoinSet};

const BUCKET: &str = "lines";
const ID: &str = "AKIDTEST";
const SECRET: &str = "correct/horse+battery";
const TOKEN: &str = "lent";
/// Number of keys in a page.
const PAGE: usize = 3;

/// The fault of one request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trouble {
    /// A redirect to this region.
    Refused(u16, &'static str, Option<&'static str>),
    /// The connection closes before the request is processed.
    Dropped,
    /// The connection closes after the request is processed.
    Lost,
    /// A truncated response.
    Cut,
    /// No response.
    Silent,
    /// A response over the size limit.
    Flood,
    /// The whole object instead of the requested range.
    Whole,
}

#[derive(Debug, Default)]
struct State {
    objects: Mutex<BTreeMap<String, Bytes>>,
    troubles: Mutex<VecDeque<Option<Trouble>>>,
    /// Number of faults per thousand requests, in a reproducible sequence.
    dice: Mutex<(u64, u64)>,
    away: AtomicBool,
    refuses_writes: AtomicBool,
    /// Whether requests need no session token.
    permanent_key: AtomicBool,
    asked: Mutex<Vec<String>>,
    now: AtomicUsize,
    most: AtomicUsize,
}

/// A running store, stopped on drop.
pub(crate) struct Objects {
    address: SocketAddr,
    state: Arc<State>,
    _connections: JoinSet<()>,
}

impl Objects {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(State::default()));
        let (mut connections, serving) = (JoinSet::new(), state.clone());
        connections.spawn(async move {
            let mut inner = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let state = serving.clone();
                let service = service_fn(move |request| answer(state.clone(), request));
                inner.spawn(async move {
                    drop(
                        http1::Builder::new()
                            .serve_connection(TokioIo::new(stream), service)
                            .await,
                    );
                });
            }
        });
        Self {
            address,
            state,
            _connections: connections,
        }
    }

    /// A prefix of the bucket, and the right key.
    pub(crate) fn place(&self, prefix: &str) -> Place {
        Place {
            endpoint: format!("http://{}", self.address).parse().unwrap(),
            region: "eu-test-1".into(),
            style: Style::Path,
            bucket: BUCKET.into(),
            prefix: prefix.into(),
            credentials: Credentials {
                access_key_id: ID.into(),
                secret_access_key: SECRET.into(),
                session_token: Some(TOKEN.into()),
            },
            root: None,
        }
    }

    /// Accepts requests with the permanent access key. Returns the endpoint, the bucket, the region
    /// and the access key.
    pub(crate) fn permanent_key(&self) -> (String, &str, &str, (&str, &str)) {
        self.state.permanent_key.store(true, Ordering::SeqCst);
        let endpoint = format!("http://{}", self.address);
        (endpoint, BUCKET, "eu-test-1", (ID, SECRET))
    }

    /// Returns the content of an object.
    pub(crate) fn content(&self, key: &str) -> Bytes {
        self.state.objects.lock()[key].clone()
    }

    /// Sets the faults of the next requests, one each.
    pub(crate) fn plan(&self, troubles: impl IntoIterator<Item = Option<Trouble>>) {
        *self.state.troubles.lock() = troubles.into_iter().collect();
    }

    /// Sets the number of faults per thousand requests.
    pub(crate) fn bad_luck(&self, seed: u64, of_thousand: u64) {
        *self.state.dice.lock() = (seed, of_thousand);
    }

    /// Sets whether every connection is closed at once.
    pub(crate) fn away(&self, away: bool) {
        self.state.away.store(away, Ordering::SeqCst);
    }

    pub(crate) fn refuse_writes(&self) {
        self.state.refuses_writes.store(true, Ordering::SeqCst);
    }

    /// Returns methods and paths of all requests since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.state.asked.lock())
    }

    /// Returns the largest number of concurrent requests.
    pub(crate) fn most(&self) -> usize {
        self.state.most.load(Ordering::SeqCst)
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.state.objects.lock().keys().cloned().collect()
    }

    /// Stores an object as another client.
    pub(crate) fn put(&self, key: &str) {
        self.state
            .objects
            .lock()
            .insert(key.to_owned(), Bytes::from_static(b"theirs"));
    }
}

/// A body that may be truncated.
struct Half(Option<Bytes>, bool, u64);

impl Body for Half {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Poll::Ready(match self.0.take() {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if self.1 => Some(Err(std::io::Error::other("cut"))),
            None => None,
        })
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        hyper::body::SizeHint::with_exact(self.2)
    }
}

type Answer = Response<Half>;

fn said(status: u16, body: impl Into<Bytes>) -> Answer {
    let body = body.into();
    let length = body.len() as u64;
    Response::builder()
        .status(status)
        .body(Half(Some(body), false, length))
        .unwrap()
}

fn refusal(status: u16, code: &str) -> Answer {
    said(
        status,
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>"),
    )
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Answer, std::io::Error> {
    let now = state.now.fetch_add(1, Ordering::SeqCst) + 1;
    state.most.fetch_max(now, Ordering::SeqCst);
    // Lets other requests arrive.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let done = decide(&state, request).await;
    state.now.fetch_sub(1, Ordering::SeqCst);
    done
}

async fn decide(state: &State, request: Request<Incoming>) -> Result<Answer, std::io::Error> {
    state
        .asked
        .lock()
        .push(format!("{} {}", request.method(), request.uri()));
    let trouble = if state.away.load(Ordering::SeqCst) {
        Some(Trouble::Dropped)
    } else {
        state.trouble()
    };
    let ended = || Err(std::io::Error::other("ended"));
    match trouble {
        Some(Trouble::Dropped) => return ended(),
        Some(Trouble::Silent) => std::future::pending().await,
        Some(Trouble::Refused(status, code, region)) => {
            let mut answer = refusal(status, code);
            if let Some(region) = region {
                answer
                    .headers_mut()
                    .insert("x-amz-bucket-region", region.parse().unwrap());
            }
            return Ok(answer);
        }
        Some(Trouble::Flood) => return Ok(said(200, vec![b' '; 9 << 20])),
        _ => {}
    }
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_err(std::io::Error::other)?
        .to_bytes();
    let whole = matches!(trouble, Some(Trouble::Whole));
    let permanent = state.permanent_key.load(Ordering::SeqCst);
    let mut done = match signed(&parts, &body, permanent) {
        Ok(()) => state.act(&parts, body, whole),
        Err(why) => refusal(403, why),
    };
    match trouble {
        Some(Trouble::Lost) => ended(),
        Some(Trouble::Cut) => {
            let Half(Some(bytes), _, length) = done.body() else {
                unreachable!()
            };
            let half = Half(Some(bytes.slice(..bytes.len() / 2)), true, *length);
            *done.body_mut() = half;
            Ok(done)
        }
        _ => Ok(done),
    }
}

/// Whether signature and digest of a request are valid.
fn signed(
    parts: &hyper::http::request::Parts,
    body: &[u8],
    permanent: bool,
) -> Result<(), &'static str> {
    let header = |name: &str| {
        parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let said = header("authorization")
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or("AccessDenied")?;
    let fields: HashMap<&str, &str> = said
        .split(", ")
        .filter_map(|field| field.split_once('='))
        .collect();
    let (id, scope) = fields["Credential"].split_once('/').unwrap();
    let [day, region, "s3", "aws4_request"] = scope.split('/').collect::<Vec<_>>()[..] else {
        return Err("AccessDenied");
    };
    if id != ID {
        return Err("InvalidAccessKeyId");
    }
    if !permanent && header("x-amz-security-token") != TOKEN {
        return Err("InvalidToken");
    }
    let hash = hex::encode(digest::digest(&digest::SHA256, body));
    let names: Vec<&str> = fields["SignedHeaders"].split(';').collect();
    let must = [
        "host",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
    ];
    if header("x-amz-content-sha256") != hash
        || !must[..if permanent { 3 } else { 4 }]
            .iter()
            .all(|name| names.contains(name))
        || !names.is_sorted()
    {
        return Err("XAmzContentSHA256Mismatch");
    }
    let mut query: Vec<&str> = parts.uri.query().unwrap_or_default().split('&').collect();
    query.sort_unstable();
    let mut canonical = format!(
        "{}\n{}\n{}\n",
        parts.method,
        parts.uri.path(),
        query.join("&")
    );
    for name in &names {
        writeln!(canonical, "{name}:{}", header(name)).unwrap();
    }
    write!(canonical, "\n{}\n{hash}", names.join(";")).unwrap();
    let canonical = hex::encode(digest::digest(&digest::SHA256, canonical.as_bytes()));
    let text = format!(
        "AWS4-HMAC-SHA256\n{}\n{scope}\n{canonical}",
        header("x-amz-date")
    );
    let mac = |key: &[u8], text: &str| {
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
    };
    let key = mac(format!("AWS4{SECRET}").as_bytes(), day);
    let key = mac(
        mac(mac(key.as_ref(), region).as_ref(), "s3").as_ref(),
        "aws4_request",
    );
    let fits = hex::encode(mac(key.as_ref(), &text)) == fields["Signature"];
    if fits && header("x-amz-date").starts_with(day) {
        Ok(())
    } else {
        Err("SignatureDoesNotMatch")
    }
}

fn decoded(text: &str) -> String {
    // Canonical requests encode a space as %20.
    form_urlencoded::parse(text.replace('+', "%2B").as_bytes())
        .next()
        .map(|(text, _)| text.into_owned())
        .unwrap_or_default()
}

impl State {
    fn trouble(&self) -> Option<Trouble> {
        if let Some(planned) = self.troubles.lock().pop_front() {
            return planned;
        }
        let mut dice = self.dice.lock();
        let mut roll = |sides: u64| {
            dice.0 = dice
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (dice.0 >> 33) % sides
        };
        let (unlucky, kind) = (roll(1000), roll(4));
        let troubles = [
            Trouble::Dropped,
            Trouble::Lost,
            Trouble::Cut,
            Trouble::Refused(503, "SlowDown", None),
        ];
        (unlucky < dice.1).then(|| troubles[usize::try_from(kind).unwrap()])
    }

    fn act(&self, parts: &hyper::http::request::Parts, body: Bytes, whole: bool) -> Answer {
        let path = parts.uri.path().trim_start_matches('/');
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return refusal(404, "NoSuchBucket");
        }
        let key = decoded(key);
        let mut objects = self.objects.lock();
        match parts.method {
            Method::GET if key.is_empty() => {
                said(200, list(&objects, parts.uri.query().unwrap_or_default()))
            }
            Method::PUT | Method::DELETE if self.refuses_writes.load(Ordering::SeqCst) => {
                refusal(403, "AccessDenied")
            }
            Method::PUT => {
                objects.insert(key, body);
                said(200, "")
            }
            Method::DELETE => {
                objects.remove(&key);
                said(204, "")
            }
            Method::GET | Method::HEAD => match objects.get(&key) {
                Some(object) => read(
                    object,
                    parts
                        .headers
                        .get("range")
                        .filter(|_| !whole)
                        .map(|it| it.to_str().unwrap()),
                ),
                None => refusal(404, "NoSuchKey"),
            },
            _ => refusal(405, "MethodNotAllowed"),
        }
    }
}

fn read(object: &Bytes, range: Option<&str>) -> Answer {
    let length = object.len();
    let mut answer = match range.map(|range| {
        range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap()
    }) {
        None => said(200, object.clone()),
        Some((from, to)) => {
            let (from, to) = match (from, to) {
                ("", count) => (length.saturating_sub(count.parse().unwrap()), length - 1),
                (from, "") => (from.parse().unwrap(), length - 1),
                (from, to) => (
                    from.parse().unwrap(),
                    to.parse::<usize>().unwrap().min(length - 1),
                ),
            };
            if from >= length {
                return refusal(416, "InvalidRange");
            }
            let mut answer = said(206, object.slice(from..=to));
            answer.headers_mut().insert(
                "content-range",
                format!("bytes {from}-{to}/{length}").parse().unwrap(),
            );
            answer
        }
    };
    answer.headers_mut().insert(
        "last-modified",
        "Sat, 21 Nov 2026 09:15:03 GMT".parse().unwrap(),
    );
    answer
        .headers_mut()
        .insert("etag", "\"tag\"".parse().unwrap());
    answer
}

fn list(objects: &BTreeMap<String, Bytes>, query: &str) -> String {
    let query: HashMap<&str, String> = query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, it)| (name, decoded(it)))
        .collect();
    let get = |name: &str| query.get(name).cloned().unwrap_or_default();
    assert_eq!(get("list-type"), "2");
    let (prefix, delimiter) = (get("prefix"), get("delimiter"));
    let after = query.get("continuation-token").map_or_else(
        || get("start-after"),
        |token| token.strip_prefix("after=").unwrap().to_owned(),
    );
    let most = query
        .get("max-keys")
        .map_or(PAGE, |max| max.parse::<usize>().unwrap().min(PAGE));
    let escaped = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let (mut folders, mut entries, mut count, mut last) = (BTreeSet::new(), String::new(), 0, None);
    for (key, bytes) in objects
        .iter()
        .filter(|(key, _)| key.starts_with(&prefix) && **key > after)
    {
        let folder = key[prefix.len()..]
            .find(&delimiter)
            .filter(|_| !delimiter.is_empty())
            .map(|at| key[..=prefix.len() + at].to_owned());
        if folder
            .as_ref()
            .is_some_and(|folder| folders.contains(folder) || after == *folder)
        {
            continue;
        }
        if count == most {
            let last: String = last.unwrap();
            write!(entries, "<IsTruncated>true</IsTruncated><NextContinuationToken>after={}</NextContinuationToken>", escaped(&last))
                .unwrap();
            break;
        }
        count += 1;
        if let Some(folder) = folder {
            write!(
                entries,
                "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
                escaped(&folder)
            )
            .unwrap();
            folders.insert(folder.clone());
            last = Some(folder);
        } else {
            let (name, size, at) = (escaped(key), bytes.len(), "2026-11-21T09:15:03.000Z");
            write!(entries, "<Contents><Key>{name}</Key><LastModified>{at}</LastModified><Size>{size}</Size></Contents>").unwrap();
            last = Some(key.clone());
        }
    }
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{entries}</ListBucketResult>"
    )
}
