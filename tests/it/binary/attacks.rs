//! Attacks over the wire: the requests listed in `tests/attacks/*.txt`, sent byte by byte to the
//! real binary.
//!
//! `tests/attacks/README.md` describes the format. The service behind the edge answers with the
//! request that reached it.

use std::{
    fs,
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::process::Signal;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};

use super::machine::{Gantry, Machine, field};

/// Timeout of one read or write. An incomplete response is evaluated as well.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// One entry of a list.
#[derive(Debug, Default)]
struct Attack {
    name: String,
    listener: String,
    request: Vec<u8>,
    statuses: Vec<String>,
    contains: Vec<String>,
    lacks: Vec<String>,
}

/// The values of placeholders.
struct Target {
    api: SocketAddr,
    edge: SocketAddr,
    token: String,
    project: String,
    tls: Arc<ClientConfig>,
}

impl Target {
    fn fill(&self, text: &str) -> String {
        let host = format!("{}.localhost:{}", self.project, self.edge.port());
        let values = [
            ("{api}", self.api.to_string()),
            ("{edge}", host),
            ("{token}", self.token.clone()),
            ("{ref}", self.project.clone()),
        ];
        values.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(name, value)
        })
    }

    /// Sends the request and returns the bytes of the response, empty if the connection was closed
    /// without one.
    fn send(&self, attack: &Attack) -> std::io::Result<Vec<u8>> {
        let to_edge = attack.listener == "edge";
        let stream = TcpStream::connect(if to_edge { self.edge } else { self.api })?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        stream.set_write_timeout(Some(READ_TIMEOUT))?;
        if to_edge {
            let name = ServerName::try_from(format!("{}.localhost", self.project))
                .map_err(std::io::Error::other)?;
            let connection =
                ClientConnection::new(self.tls.clone(), name).map_err(std::io::Error::other)?;
            exchange(StreamOwned::new(connection, stream), &attack.request)
        } else {
            exchange(stream, &attack.request)
        }
    }
}

fn exchange(mut stream: impl Read + Write, request: &[u8]) -> std::io::Result<Vec<u8>> {
    // A refused request may end the connection while it is still being sent.
    let _ = stream.write_all(request).and_then(|()| stream.flush());
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while answer.len() < ANSWER_BYTES_MAX && !complete(&answer) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&piece[..read]),
            // After a TLS close without close_notify, or a reset, the partial response counts.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::UnexpectedEof
                        | ErrorKind::ConnectionReset
                        | ErrorKind::ConnectionAborted
                ) =>
            {
                break;
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
                    && !answer.is_empty() =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// Whether a whole response with a known length has arrived.
fn complete(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let head = head.to_ascii_lowercase();
    let field = |name: &str| {
        head.lines()
            .find_map(|line| line.strip_prefix(name).map(str::trim))
    };
    match field("content-length:").and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => field("transfer-encoding:").is_some() && body.ends_with("0\r\n\r\n"),
    }
}

/// Reads a list, with placeholders filled in.
fn read(file: &Path, target: &Target) -> Vec<Attack> {
    let text = fs::read_to_string(file).unwrap();
    let mut attacks: Vec<Attack> = Vec::new();
    for (number, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(name) = line.strip_prefix("== ") {
            attacks.push(Attack {
                name: name.to_owned(),
                ..Attack::default()
            });
            continue;
        }
        let attack = attacks
            .last_mut()
            .unwrap_or_else(|| panic!("{}:{}: no name above", file.display(), number + 1));
        match line.split_once(' ').unwrap_or((line, "")) {
            ("why:", _) => {}
            ("to:", listener) => listener.clone_into(&mut attack.listener),
            (">", sent) => {
                attack.request.extend(unescape(&target.fill(sent)));
                attack.request.extend(b"\r\n");
            }
            ("<", expected) => match expected.split_once(": ") {
                Some(("contains", text)) => attack.contains.push(target.fill(text)),
                Some(("lacks", text)) => attack.lacks.push(target.fill(text)),
                _ => attack
                    .statuses
                    .extend(expected.split(' ').map(str::to_owned)),
            },
            _ => panic!(
                "{}:{}: {line:?} is no line of the format",
                file.display(),
                number + 1
            ),
        }
    }
    for attack in &mut attacks {
        // After the empty line follows the body. Its last line has no line break.
        if !attack.request.ends_with(b"\r\n\r\n") {
            attack
                .request
                .truncate(attack.request.len().saturating_sub(2));
        }
        assert!(
            ["api", "edge"].contains(&attack.listener.as_str()) && !attack.statuses.is_empty(),
            "{attack:?}"
        );
    }
    attacks
}

/// Replaces `\r`, `\n`, `\t`, `\\` and `\xNN` by their bytes.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [b'r', more @ ..]) => (bytes.push(b'\r'), rest = more).1,
            (b'\\', [b'n', more @ ..]) => (bytes.push(b'\n'), rest = more).1,
            (b'\\', [b't', more @ ..]) => (bytes.push(b'\t'), rest = more).1,
            (b'\\', [b'\\', more @ ..]) => (bytes.push(b'\\'), rest = more).1,
            (b'\\', [b'x', high, low, more @ ..]) => {
                let digits = String::from_utf8(vec![*high, *low]).unwrap();
                bytes.push(u8::from_str_radix(&digits, 16).unwrap());
                rest = more;
            }
            _ => bytes.push(*first),
        }
    }
    bytes
}

/// Returns the difference between the response and the expected one, if any.
fn judge(attack: &Attack, answer: &std::io::Result<Vec<u8>>) -> Option<String> {
    let answer = match answer {
        Ok(answer) => String::from_utf8_lossy(answer),
        Err(error) => return Some(format!("{error}")),
    };
    let status = answer
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .unwrap_or("closed");
    if !attack.statuses.iter().any(|expected| expected == status) {
        return Some(format!(
            "answered {status}, not {}: {answer:?}",
            attack.statuses.join(" or ")
        ));
    }
    let lower = answer.to_ascii_lowercase();
    let missing = attack
        .contains
        .iter()
        .find(|text| !lower.contains(&text.to_ascii_lowercase()));
    let leaked = attack
        .lacks
        .iter()
        .find(|text| lower.contains(&text.to_ascii_lowercase()));
    match (missing, leaked) {
        (None, None) => None,
        (Some(text), _) => Some(format!("{text:?} is missing in {answer:?}")),
        (_, Some(text)) => Some(format!("{text:?} stands in {answer:?}")),
    }
}

/// Starts a service that returns the received head of each request and closes the connection.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut head = String::new();
                let mut lines = BufReader::new(&stream);
                while lines.read_line(&mut head).is_ok_and(|read| read > 2) {}
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{head}",
                    head.len()
                );
                let _ = (&stream).write_all(answer.as_bytes());
            });
        }
    });
    address
}

fn lists() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "txt"));
    files.sort();
    files
}

fn target(gantry: &Gantry) -> Target {
    let port = field(&gantry.greeting, "Services")
        .strip_prefix("https://<ref>.localhost:")
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    let authority = field(&gantry.greeting, "certificate authority:").trim_matches('\'');
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(
        CertificateDer::pem_file_iter(authority)
            .unwrap()
            .map(Result::unwrap),
    );
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let edge = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let project = gantry.create("attacked");
    gantry.healthy(&project);
    let tls = Arc::new(tls.with_root_certificates(roots).with_no_client_auth());
    Target {
        api: gantry.address,
        edge,
        token: gantry.token.clone(),
        project,
        tls,
    }
}

#[test]
fn listed_attacks_get_expected_response() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&["--upstream", &format!("rest=http://{}", echo())]);
    let target = target(&gantry);
    let (mut failures, mut sent) = (Vec::new(), 0);
    for file in lists() {
        for attack in read(&file, &target) {
            let answer = target.send(&attack);
            sent += 1;
            if let Some(problem) = judge(&attack, &answer) {
                failures.push(format!(
                    "{}: {}: {problem}",
                    file.file_name().unwrap().display(),
                    attack.name
                ));
            }
        }
    }
    assert!(sent > 0, "no list was found");
    assert!(
        failures.is_empty(),
        "{} of {sent}:\n{}",
        failures.len(),
        failures.join("\n")
    );
    // The server and the project are unharmed.
    gantry.healthy(&target.project);
    assert_eq!(
        gantry.stop(Signal::TERM).code(),
        Some(0),
        "{}",
        gantry.log()
    );
}
