//! A project of a `gantry dev` with services, and a client of its service proxy.

use std::{
    env, fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::sleep,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::dev::{Dev, Outcome, free_port};

/// Requests per connection and round.
pub(crate) const REQUESTS: usize = 400;

/// Runs a benchmark of a service with the folder of programs on the command line, or that of the
/// tests.
///
/// Errors: the name of what is missing, and how to get it.
pub(crate) fn run<F>(service: &str, bench: impl FnOnce(PathBuf) -> F) -> Outcome<()>
where
    F: Future<Output = Outcome<()>>,
{
    let kits = env::args().skip(1).find(|argument| argument != "--bench");
    let kits = kits.unwrap_or_else(|| "/var/tmp/gantry-test-kits".to_owned());
    if !Path::new(&kits).join(service).is_dir() {
        return Err(format!(
            "there is no program of the service {service} in {kits}; get it with \
             `gantry service install {service} --data-dir DIR`, and name DIR/kits after `--`"
        )
        .into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(bench(kits.into()))
}

/// Kills processes, and those that replace them at once, so that the next request starts one.
pub(crate) async fn end_all(pids: impl Fn() -> Outcome<Vec<i32>>) -> Outcome<()> {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let living = pids()?;
        for pid in &living {
            if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
                // It may have ended.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        // Longer than the start of a process takes.
        sleep(Duration::from_secs(1)).await;
        if living.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err("the processes of a service do not end".into());
        }
    }
}

/// A project that runs, its keys, and the addresses of its services.
pub(crate) struct EdgeProject {
    pub(crate) gantry: Dev,
    pub(crate) project: String,
    pub(crate) home: PathBuf,
    pub(crate) host: String,
    pub(crate) publishable: String,
    pub(crate) anon: String,
    address: SocketAddr,
    tls: TlsConnector,
}

impl EdgeProject {
    /// Starts a server with the programs in the folder `kits`.
    pub(crate) async fn new(place: &Path, kits: &Path) -> Outcome<Self> {
        let key = KeyPair::generate()?;
        let names = vec!["*.projects.test".to_owned()];
        let certificate = CertificateParams::new(names)?.self_signed(&key)?;
        let at = |name: &str| place.join(name).display().to_string();
        fs::write(at("cert.pem"), certificate.pem())?;
        fs::write(at("key.pem"), key.serialize_pem())?;
        let edge = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let home = place.join("home");
        let gantry = Dev::start(
            &home,
            &[
                "--project-domain",
                "projects.test",
                "--edge-https-listen",
                &edge.to_string(),
                "--edge-tls-cert",
                &at("cert.pem"),
                "--edge-tls-key",
                &at("key.pem"),
                "--services-dir",
                &kits.display().to_string(),
            ],
        )?;
        let project = gantry.project()?;
        let keys = keys(&gantry, &project).await?;
        let publishable = publishable(&keys)?;
        let anon = after("\"api_key\":\"ey", &keys).ok_or("no legacy key")?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(at("cert.pem"))?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        Ok(Self {
            host: host(&project),
            publishable,
            anon: format!("ey{anon}"),
            tls: TlsConnector::from(Arc::new(tls)),
            address: edge,
            gantry,
            project,
            home,
        })
    }

    /// Connects to the service proxy.
    pub(crate) async fn connect(&self) -> Outcome<TlsStream<TcpStream>> {
        self.connect_to(&self.host).await
    }

    /// Connects to the service proxy with the host of another project.
    pub(crate) async fn connect_to(&self, host: &str) -> Outcome<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(host.to_owned())?;
        Ok(self.tls.connect(name, stream).await?)
    }

    /// Creates another project. Returns its host and its publishable key.
    pub(crate) async fn add_project(&self, name: &str) -> Outcome<(String, String)> {
        let project = loop {
            match self.gantry.project_named(name) {
                Err(answer) if answer.to_string().starts_with("HTTP/1.1 429") => {
                    sleep(Duration::from_secs(2)).await;
                }
                made => break made?,
            }
        };
        let keys = keys(&self.gantry, &project).await?;
        Ok((host(&project), publishable(&keys)?))
    }
}

fn host(project: &str) -> String {
    format!("{project}.projects.test")
}

/// Waits until a project has keys, and returns the response with them.
async fn keys(gantry: &Dev, project: &str) -> Outcome<String> {
    let path = format!("/v1/projects/{project}/api-keys?reveal=true");
    loop {
        let answer = gantry.send("GET", &path, "")?;
        if answer.starts_with("HTTP/1.1 200") {
            return Ok(answer);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn publishable(keys: &str) -> Outcome<String> {
    let key = after("\"api_key\":\"sb_publishable_", keys).ok_or("no key")?;
    Ok(format!("sb_publishable_{key}"))
}

/// Returns the text between `before` and the next quotation mark.
fn after(before: &str, text: &str) -> Option<String> {
    let from = text.split(before).nth(1)?;
    Some(from.split('"').next()?.to_owned())
}

/// Repeats a request over each connection, and returns the times in milliseconds.
pub(crate) async fn load<S>(streams: Vec<S>, request: &Arc<str>) -> Outcome<Vec<f64>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut clients = JoinSet::new();
    for mut stream in streams {
        let request = Arc::clone(request);
        clients.spawn(async move { repeat(&mut stream, &request, REQUESTS).await });
    }
    let mut all = Vec::new();
    while let Some(times) = clients.join_next().await {
        all.extend(times??);
    }
    Ok(all)
}

pub(crate) async fn repeat<S>(
    stream: &mut S,
    request: &str,
    count: usize,
) -> std::io::Result<Vec<f64>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut buffer = vec![0; 16 * 1024];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let mut read = 0;
        // The body comes in chunks from PostgREST and ends with an empty one.
        while !buffer[..read].ends_with(b"0\r\n\r\n") && !buffer[..read].ends_with(b"}]") {
            match stream.read(&mut buffer[read..]).await? {
                0 => return Err(std::io::Error::other("closed")),
                more => read += more,
            }
            if read > 12 && !buffer.starts_with(b"HTTP/1.1 200") {
                let text = String::from_utf8_lossy(&buffer[..read]).into_owned();
                return Err(std::io::Error::other(text));
            }
        }
        times.push(millis(began.elapsed()));
    }
    Ok(times)
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Processor time of a process, in clock ticks.
pub(crate) fn processor_ticks(pid: u32) -> Outcome<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(") ").ok_or("no name")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Ok(fields[11].parse::<u32>()? + fields[12].parse::<u32>()?)
}

/// Memory of a process, with shared pages divided by their users, in kB.
pub(crate) fn proportional_memory(pid: i32) -> Outcome<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let line = line.ok_or("no Pss")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
