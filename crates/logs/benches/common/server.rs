//! An object store for benchmarks: an HTTP server with counted requests, and its client.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path as FilePath, PathBuf},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream, stream::BoxStream};
use gantry_logs::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result, path::Path,
};
use parking_lot::Mutex;

/// Number of keys in a page of a listing, that of S3.
const PAGE: usize = 1_000;

/// The requests since the last look.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) listings: u64,
    pub(crate) reads: u64,
    /// Size of all response bodies of reads.
    pub(crate) bytes: u64,
    /// The objects that were read.
    pub(crate) keys: BTreeSet<String>,
}

/// A server of the files below a folder, with a thread for each connection. Lives as long as the
/// process.
pub(crate) struct ObjectServer {
    address: SocketAddr,
    requests: Arc<Mutex<Requests>>,
}

impl ObjectServer {
    pub(crate) fn start(root: PathBuf) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let requests = Arc::new(Mutex::new(Requests::default()));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (root, counted) = (root.clone(), Arc::clone(&counted));
                // Ends with the connection.
                thread::spawn(move || serve(&stream, &root, &counted));
            }
        });
        Ok(Self { address, requests })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn take_requests(&self) -> Requests {
        std::mem::take(&mut *self.requests.lock())
    }
}

#[expect(
    clippy::single_match_else,
    reason = "the two kinds of requests are alike"
)]
fn serve(stream: &TcpStream, root: &FilePath, requests: &Mutex<Requests>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    while let Some((target, range)) = read_request(&mut input)? {
        let body = match target.split_once("?prefix=") {
            Some((_, query)) => {
                let (prefix, after) = query.split_once("&start-after=").unwrap_or((query, ""));
                requests.lock().listings += 1;
                list(root, prefix, after)?.into_bytes()
            }
            None => {
                let key = target.trim_start_matches('/');
                let file = File::open(root.join(key))?;
                let range = range.unwrap_or(0..file.metadata()?.len());
                let length = range.end.min(file.metadata()?.len()) - range.start;
                let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                file.read_exact_at(&mut body, range.start)?;
                let mut requests = requests.lock();
                requests.reads += 1;
                requests.bytes += length;
                requests.keys.insert(key.to_owned());
                body
            }
        };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        (&*stream).write_all(head.as_bytes())?;
        (&*stream).write_all(&body)?;
    }
    Ok(())
}

/// Reads the target and the range of a request. Returns `None` at the end of the connection.
fn read_request(input: &mut impl BufRead) -> io::Result<Option<(String, Option<Range<u64>>)>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        line.clear();
        input.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            return Ok(Some((target, range)));
        }
        if let Some(bounds) = line.strip_prefix("range: bytes=")
            && let Some((first, last)) = bounds.trim_end().split_once('-')
        {
            let first = first.parse().map_err(io::Error::other)?;
            let last: u64 = last.parse().map_err(io::Error::other)?;
            range = Some(first..last + 1);
        }
    }
}

/// Returns the size and the key of a page of files below a folder, a line each.
fn list(root: &FilePath, prefix: &str, after: &str) -> io::Result<String> {
    let mut keys = Vec::new();
    let mut folders = vec![root.join(prefix)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(folder) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Ok(key) = entry.path().strip_prefix(root) {
                keys.push((key.display().to_string(), entry.metadata()?.len()));
            }
        }
    }
    keys.retain(|(key, _)| key.as_str() > after);
    keys.sort();
    let mut page = String::new();
    for (key, size) in keys.iter().take(PAGE) {
        let _ = writeln!(page, "{size} {key}");
    }
    Ok(page)
}

/// A client that keeps its connections open.
#[derive(Debug, Clone)]
pub(crate) struct ServedObjects {
    address: SocketAddr,
    idle: Arc<Mutex<Vec<BufReader<TcpStream>>>>,
}

impl fmt::Display for ServedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "objects at {}", self.address)
    }
}

fn generic(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic {
        store: "served",
        source: Box::new(error),
    }
}

fn read_only() -> Error {
    generic(io::Error::from(io::ErrorKind::Unsupported))
}

impl ServedObjects {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            idle: Arc::default(),
        }
    }

    /// Sends a request and returns the body of the response.
    async fn request(&self, target: String, range: Option<Range<u64>>) -> Result<Bytes> {
        let this = self.clone();
        let exchange = move || this.exchange(&target, range);
        tokio::task::spawn_blocking(exchange)
            .await
            .map_err(generic)?
            .map_err(generic)
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "a range is not `Copy`, and each request has one"
    )]
    fn exchange(&self, target: &str, range: Option<Range<u64>>) -> io::Result<Bytes> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(self.address)?),
        };
        connection.get_ref().set_nodelay(true)?;
        let mut request = format!("GET {target} HTTP/1.1\r\n");
        if let Some(Range { start, end }) = range {
            let _ = write!(request, "range: bytes={start}-{}\r\n", end - 1);
        }
        request.push_str("\r\n");
        connection.get_mut().write_all(request.as_bytes())?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim_end().parse().map_err(io::Error::other)?;
            }
            if line.trim_end().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body)?;
        self.idle.lock().push(connection);
        Ok(body.into())
    }

    async fn page(&self, prefix: &str, after: &str) -> Result<Vec<ObjectMeta>> {
        let target = format!("/?prefix={prefix}&start-after={after}");
        let body = self.request(target, None).await?;
        let mut page = Vec::new();
        for line in String::from_utf8_lossy(&body).lines() {
            let (size, key) = line.split_once(' ').ok_or_else(read_only)?;
            page.push(ObjectMeta {
                location: Path::from(key),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size: size.parse().map_err(generic)?,
                e_tag: None,
                version: None,
            });
        }
        Ok(page)
    }
}

#[async_trait]
impl ObjectStore for ServedObjects {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let range = match options.range {
            Some(GetRange::Bounded(range)) => Some(range),
            None => None,
            Some(_) => return Err(read_only()),
        };
        let body = self.request(format!("/{location}"), range.clone()).await?;
        let size = body.len() as u64;
        let range = range.map_or(0..size, |range| range.start..range.start + size);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::iter([Ok(body)]).boxed()),
            meta: ObjectMeta {
                location: location.clone(),
                last_modified: chrono::DateTime::UNIX_EPOCH,
                size: range.end,
                e_tag: None,
                version: None,
            },
            range,
            attributes: Attributes::default(),
        })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let this = self.clone();
        let prefix = prefix.map_or_else(String::new, Path::to_string);
        let pages = stream::try_unfold(Some(String::new()), move |after| {
            let (this, prefix) = (this.clone(), prefix.clone());
            async move {
                let Some(after) = after else {
                    return Ok::<_, Error>(None);
                };
                let page = this.page(&prefix, &after).await?;
                let last = page.last().filter(|_| page.len() == PAGE);
                let next = last.map(|meta| meta.location.to_string());
                Ok(Some((stream::iter(page.into_iter().map(Ok)), next)))
            }
        });
        pages.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(read_only())
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(read_only())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(read_only())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        stream::iter([Err(read_only())]).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(read_only())
    }
}
