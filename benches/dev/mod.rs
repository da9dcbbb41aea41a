//! A `gantry dev` to be measured.

use std::{
    error::Error,
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The password of the project.
pub(crate) const PASSWORD: &str = "correct horse";

/// Returns a port that is free at the moment.
pub(crate) fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The program, stopped when dropped.
pub(crate) struct Dev {
    child: Child,
    api: SocketAddr,
    token: String,
    /// Slug of the organization.
    pub(crate) organization: String,
}

impl Dev {
    pub(crate) fn start(home: &Path, arguments: &[&str]) -> Outcome<Self> {
        let api = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let mut child = Command::new(env!("CARGO_BIN_EXE_gantry"))
            .args(["dev", "--listen", &api.to_string(), "--data-dir"])
            .arg(home)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // Ready when it has said so.
        let mut greeting = Vec::new();
        let mut stdout = child.stdout.take().ok_or("no output")?;
        while !String::from_utf8_lossy(&greeting).contains("Ctrl-C") {
            let mut piece = [0; 1024];
            match stdout.read(&mut piece)? {
                0 => return Err("gantry dev ended".into()),
                n => greeting.extend_from_slice(&piece[..n]),
            }
        }
        let variables = fs::read_to_string(home.join("dev.env"))?;
        let value = |name: &str| {
            variables
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::to_owned)
                .ok_or("a variable is missing")
        };
        Ok(Self {
            child,
            api,
            token: value("GANTRY_TOKEN=")?,
            organization: value("GANTRY_ORG=")?,
        })
    }

    /// Sends a request to the API, and returns the whole response.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Outcome<String> {
        let mut stream = TcpStream::connect(self.api)?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// A project; connections wait until it is there.
    pub(crate) fn project(&self) -> Outcome<String> {
        self.project_named("bench")
    }

    pub(crate) fn project_named(&self, name: &str) -> Outcome<String> {
        let body = format!(
            r#"{{"name": "{name}", "organization_slug": "{}", "db_pass": "{PASSWORD}"}}"#,
            self.organization
        );
        let answer = self.send("POST", "/v1/projects", &body)?;
        let (_, rest) = answer
            .split_once(r#""ref":""#)
            .ok_or_else(|| answer.clone())?;
        Ok(rest.split('"').next().unwrap_or_default().to_owned())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in kB.
    pub(crate) fn memory(&self) -> Outcome<u32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let _ = self.child.wait();
    }
}
