//! `cargo bench --profile requests --bench edge`: keep-alive HTTPS through the service proxy and
//! through nginx, with the same certificate and upstream. Reports requests per second of processor
//! time, interleaved; medians, and their ratio.
//!
//! With `-- leak [REQUESTS]`: the memory of the proxy before and after a number of requests, one
//! million by default.
//!
//! The proxy is that of a real `gantry dev`, with its request log and all its rules; the upstream
//! is another nginx.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]

mod dev;

use std::{
    env, fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use dev::{Dev, Outcome, free_port};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

const ROUNDS: usize = 7;
/// Requests per run, and number of connections.
const REQUESTS: u32 = 60_000;
const CONNECTIONS: usize = 32;
/// Clock ticks per second in `/proc`.
const TICKS: f64 = 100.0;
/// Response of the upstream.
const BODY: &str = "[{\"id\": 1, \"task\": \"look at the tall cranes\", \"done\": false}]";

fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let dir = tempfile::tempdir_in("/tmp")?;
    certify(dir.path())?;
    let [upstream, before] = [free_port()?, free_port()?];
    let _upstream = Nginx::start(
        dir.path(),
        "upstream",
        &format!("server {{ listen 127.0.0.1:{upstream}; location / {{ return 200 '{BODY}'; }} }}"),
    )?;
    let nginx = Nginx::start(dir.path(), "before", &proxy(dir.path(), before, upstream))?;
    let edge = free_port()?;
    let at = |name: &str| dir.path().join(name).display().to_string();
    let gantry = Dev::start(
        &dir.path().join("home"),
        &[
            "--project-domain",
            "projects.test",
            "--edge-https-listen",
            &format!("127.0.0.1:{edge}"),
            "--edge-tls-cert",
            &at("cert.pem"),
            "--edge-tls-key",
            &at("key.pem"),
            "--upstream",
            &format!("rest=http://127.0.0.1:{upstream}"),
        ],
    )?;
    let host = format!("{}.projects.test", gantry.project()?);
    let load = Load::new(dir.path(), &host)?;
    let [edge, before] = [edge, before].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let run = |address, requests| runtime.block_on(load.run(address, requests));
    // Warm-up: connections, caches and other one-time initialization.
    for address in [edge, before] {
        run(address, REQUESTS)?;
    }
    if let Some("leak") = arguments.first().map(String::as_str) {
        let requests = arguments
            .get(1)
            .map_or(Ok(1_000_000), |text| text.parse())?;
        let memory = gantry.memory()?;
        run(edge, requests)?;
        println!(
            "memory before: {memory} kB, after {requests} requests: {} kB",
            gantry.memory()?
        );
        return Ok(());
    }
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        for (address, pids, rates) in [
            (edge, vec![gantry.pid()], &mut ours),
            (before, nginx.pids()?, &mut theirs),
        ] {
            let began = ticks(&pids)?;
            run(address, REQUESTS)?;
            let used = u32::try_from(ticks(&pids)?.saturating_sub(began).max(1))?;
            rates.push(f64::from(REQUESTS) * TICKS / f64::from(used));
        }
    }
    let ours = median(ours);
    let theirs = median(theirs);
    println!(
        "requests per second of processor time: edge {ours:.0}, nginx {theirs:.0}, ratio {:.2}",
        ours / theirs
    );
    Ok(())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Creates a self-signed certificate for all projects.
fn certify(dir: &Path) -> Outcome<()> {
    let key = KeyPair::generate()?;
    fs::write(
        dir.join("cert.pem"),
        CertificateParams::new(vec!["*.projects.test".to_owned()])?
            .self_signed(&key)?
            .pem(),
    )?;
    fs::write(dir.join("key.pem"), key.serialize_pem())?;
    Ok(())
}

/// nginx configuration equivalent to the proxy: TLS, keep-alive on both sides, forwarding headers.
fn proxy(dir: &Path, port: u16, upstream: u16) -> String {
    format!(
        "upstream rest {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 100000000; }}\n\
         server {{\n\
           listen 127.0.0.1:{port} ssl;\n\
           server_name *.projects.test;\n\
           ssl_certificate {dir}/cert.pem;\n\
           ssl_certificate_key {dir}/key.pem;\n\
           location /rest/v1/ {{\n\
             proxy_pass http://rest/;\n\
             proxy_http_version 1.1;\n\
             proxy_set_header Connection \"\";\n\
             proxy_set_header X-Forwarded-For $remote_addr;\n\
             proxy_set_header X-Forwarded-Proto https;\n\
             proxy_set_header X-Forwarded-Host $host;\n\
           }}\n\
         }}",
        dir = dir.display()
    )
}

/// An nginx process, stopped on drop.
struct Nginx(Child);

impl Nginx {
    fn start(dir: &Path, name: &str, servers: &str) -> Outcome<Self> {
        let conf = dir.join(format!("{name}.conf"));
        let at = |what: &str| dir.join(format!("{name}-{what}")).display().to_string();
        let text = format!(
            "daemon off; worker_processes 1; pid {}; error_log {} error;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {}; proxy_temp_path {};\n{servers}\n}}\n",
            at("pid"),
            at("log"),
            at("bodies"),
            at("answers")
        );
        fs::write(&conf, text)?;
        let child = Command::new("nginx")
            .arg("-c")
            .arg(&conf)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // The file is written when nginx listens.
        while !fs::read_to_string(at("pid")).is_ok_and(|text| !text.trim().is_empty()) {
            std::thread::yield_now();
        }
        Ok(Self(child))
    }

    /// Returns the process ids of nginx and its workers.
    fn pids(&self) -> Outcome<Vec<u32>> {
        let id = self.0.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        Ok(children
            .split_whitespace()
            .map(str::parse)
            .chain([Ok(id)])
            .collect::<Result<_, _>>()?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            // After SIGKILL its workers would remain.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.0.wait();
    }
}

/// Processor time of these processes, in clock ticks.
fn ticks(pids: &[u32]) -> Outcome<u64> {
    let mut all = 0;
    for pid in pids {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, rest) = stat.rsplit_once(") ").ok_or("no name")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        all += fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    }
    Ok(all)
}

/// Clients that repeat one request.
struct Load {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    request: Arc<str>,
}

impl Load {
    fn new(dir: &Path, host: &str) -> Outcome<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(dir.join("cert.pem"))?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
        let request =
            format!("GET /rest/v1/todos?select=* HTTP/1.1\r\nHost: {host}\r\napikey: sb_publishable_x\r\nAccept: */*\r\n\r\n").into();
        Ok(Self {
            config,
            name: ServerName::try_from(host.to_owned())?,
            request,
        })
    }

    /// Sends a number of requests over keep-alive connections.
    async fn run(&self, address: SocketAddr, requests: u32) -> Outcome<()> {
        let left = Arc::new(AtomicU32::new(requests));
        let mut clients = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let connector = TlsConnector::from(self.config.clone());
            let name = self.name.clone();
            let request = self.request.clone();
            let left = left.clone();
            clients.spawn(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let mut stream = connector.connect(name, stream).await?;
                let mut buffer = vec![0; 16 * 1024];
                while left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        left.checked_sub(1)
                    })
                    .is_ok()
                {
                    stream.write_all(request.as_bytes()).await?;
                    let mut read = 0;
                    while !buffer[..read].ends_with(BODY.as_bytes()) {
                        match stream.read(&mut buffer[read..]).await? {
                            0 => {
                                return Err(std::io::Error::other(
                                    String::from_utf8_lossy(&buffer[..read]).into_owned(),
                                ));
                            }
                            n => read += n,
                        }
                    }
                    if !buffer.starts_with(b"HTTP/1.1 200 ") {
                        return Err(std::io::Error::other(
                            String::from_utf8_lossy(&buffer[..read]).into_owned(),
                        ));
                    }
                }
                Ok(())
            });
        }
        while let Some(client) = clients.join_next().await {
            client??;
        }
        Ok(())
    }
}
