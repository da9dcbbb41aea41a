//! `cargo bench --profile requests --bench functions -- KITS`: Edge Functions of a real `gantry
//! dev`, with the runtime in the folder `KITS` (as for `--services-dir`).
//!
//! Each figure is a ratio of two measurements of one run: through the service proxy and straight to
//! the socket of the process; a first call with a package and without one; the memory of many
//! processes and of one; a deployment and the runtime started by hand; and the calls of a function
//! beside one that only computes.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod dev;
#[expect(dead_code, reason = "other benchmarks use the rest")]
mod edge_project;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use dev::Outcome;
use edge_project::{
    EdgeProject, end_all, load, median, millis, processor_ticks, proportional_memory, repeat,
};
use tokio::{net::UnixStream, time::sleep};

const ROUNDS: usize = 3;
/// Starts of which the processor time is added up: the kernel counts it in units of 10 ms.
const STARTS: u32 = 6;
/// Functions that run at once.
const FUNCTIONS: usize = 50;
/// A text that ends as the client of the benchmark expects.
const HELLO: &str = "Deno.serve(() => new Response('[{}]'))";
/// Functions of which the first call is compared with that of [`HELLO`]: a package that loads
/// `node:http`, and a later version of it that loads no network module of Node.js.
const PACKAGES: [(&str, &str); 2] = [
    (
        "node-http",
        "import { createClient } from 'npm:@supabase/supabase-js@2.58.0';\
         const client = createClient('http://localhost', 'key');\
         Deno.serve(() => new Response(client ? '[{}]' : ''))",
    ),
    (
        "web-only",
        "import { createClient } from 'npm:@supabase/supabase-js@2.119.1';\
         const client = createClient('http://localhost', 'key');\
         Deno.serve(() => new Response(client ? '[{}]' : ''))",
    ),
];

fn main() -> Outcome<()> {
    edge_project::run("functions", async |kits| run(&kits).await)
}

async fn run(kits: &Path) -> Outcome<()> {
    let place = tempfile::tempdir_in("/tmp")?;
    let setup = Setup(EdgeProject::new(place.path(), kits).await?);
    setup.deploy("hello", HELLO)?;
    setup.answers("hello").await?;
    setup.latency().await?;
    setup.first_calls().await?;
    setup.deployments(kits).await?;
    setup.neighbours().await?;
    setup.memory().await
}

struct Setup(EdgeProject);

impl Setup {
    /// Deploys a function of one file that needs no token.
    fn deploy(&self, slug: &str, text: &str) -> Outcome<()> {
        let text = text.replace('\\', "\\\\").replace('"', "\\\"");
        let body = format!(
            r#"{{"slug": "{slug}", "name": "{slug}", "body": "{text}", "verify_jwt": false}}"#
        );
        let path = format!("/v1/projects/{}/functions", self.0.project);
        let answer = self.0.gantry.send("POST", &path, &body)?;
        if answer.starts_with("HTTP/1.1 201") {
            return Ok(());
        }
        Err(answer.into())
    }

    fn request(&self, slug: &str) -> Arc<str> {
        let EdgeProject {
            host,
            publishable: key,
            anon,
            ..
        } = &self.0;
        format!(
            "GET /functions/v1/{slug} HTTP/1.1\r\nHost: {host}\r\napikey: {key}\r\n\
             Authorization: Bearer {anon}\r\n\r\n"
        )
        .into()
    }

    /// Repeats a request until it succeeds. Returns the time.
    async fn answers(&self, slug: &str) -> Outcome<Duration> {
        let began = Instant::now();
        loop {
            let mut stream = self.0.connect().await?;
            match repeat(&mut stream, &self.request(slug), 1).await {
                Ok(_) => return Ok(began.elapsed()),
                Err(error) if began.elapsed() > Duration::from_secs(30) => return Err(error.into()),
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// The folders of the processes.
    fn folders(&self) -> Outcome<Vec<PathBuf>> {
        let prefix = format!("{}.functions.", self.0.project);
        let mut found = Vec::new();
        for entry in fs::read_dir(self.0.home.join("run"))? {
            let entry = entry?;
            let is_function = entry.file_name().to_string_lossy().starts_with(&prefix);
            if is_function && entry.path().join("launched").exists() {
                found.push(entry.path());
            }
        }
        Ok(found)
    }

    /// The processes that run. The folder of one that ended remains for a while.
    fn pids(&self) -> Outcome<Vec<i32>> {
        let mut pids = Vec::new();
        for folder in self.folders()? {
            // Absent while a process is replaced.
            let Ok(record) = fs::read_to_string(folder.join("launched")) else {
                continue;
            };
            let pid: i32 = record.split(' ').next().unwrap_or_default().parse()?;
            if Path::new("/proc").join(pid.to_string()).exists() {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    async fn latency(&self) -> Outcome<()> {
        let folder = self.folders()?.pop().ok_or("no process")?;
        let straight: Arc<str> = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n".into();
        for connections in [1, 32] {
            let (mut edge, mut own) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let mut streams = Vec::new();
                for _ in 0..connections {
                    streams.push(self.0.connect().await?);
                }
                edge.extend(load(streams, &self.request("hello")).await?);
                let mut streams = Vec::new();
                for _ in 0..connections {
                    streams.push(UnixStream::connect(folder.join("i/s")).await?);
                }
                own.extend(load(streams, &straight).await?);
            }
            let (edge, own) = (median(edge), median(own));
            println!(
                "{connections} connections, p50: through the proxy {edge:.3} ms, straight {own:.3} ms, ratio {:.2}",
                edge / own
            );
        }
        Ok(())
    }

    /// Compares the first call of functions with a package with that of one without.
    async fn first_calls(&self) -> Outcome<()> {
        for (slug, text) in PACKAGES {
            self.deploy(slug, text)?;
            self.answers(slug).await?;
        }
        let slugs = ["hello", PACKAGES[0].0, PACKAGES[1].0];
        let (mut ticks, mut times) = ([0; 3], [const { Vec::new() }; 3]);
        for _ in 0..STARTS {
            for (index, slug) in slugs.into_iter().enumerate() {
                self.change_environment()?;
                times[index].push(millis(self.answers(slug).await?));
                // The processes of the earlier environment end by themselves.
                let pid = self.pids()?.into_iter().max().ok_or("no process")?;
                ticks[index] += processor_ticks(pid.unsigned_abs())?;
            }
        }
        let times = times.map(median);
        let processor = ticks.map(|ticks| f64::from(ticks) * 10.0 / f64::from(STARTS));
        println!(
            "first answer: {:.0} ms, {:.0} ms of processor time",
            times[0], processor[0]
        );
        for index in 1..slugs.len() {
            println!(
                "first answer with supabase-js, {}: {:.0} ms, ratio {:.2}; processor time {:.0} ms, ratio {:.2}",
                slugs[index],
                times[index],
                times[index] / times[0],
                processor[index],
                processor[index] / processor[0]
            );
        }
        Ok(())
    }

    /// Changes the secrets of the project. The next call of each function starts a process.
    fn change_environment(&self) -> Outcome<()> {
        let path = format!("/v1/projects/{}/secrets", self.0.project);
        let value = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let body = format!(r#"[{{"name": "ROUND", "value": "{}"}}]"#, value.as_nanos());
        self.0.gantry.send("POST", &path, &body)?;
        Ok(())
    }

    /// Ends all processes, and waits until another start is possible at once.
    async fn end_all(&self) -> Outcome<()> {
        // The next call starts a process without a pause after the end.
        self.change_environment()?;
        end_all(|| self.pids()).await
    }

    /// Compares a deployment until it answers with the runtime started by hand.
    async fn deployments(&self, kits: &Path) -> Outcome<()> {
        let program = program(kits)?;
        let (mut ours, mut own) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let began = Instant::now();
            let slug = format!("deployed{round}");
            self.deploy(&slug, HELLO)?;
            self.answers(&slug).await?;
            ours.push(millis(began.elapsed()));
            own.push(millis(by_hand(&program).await?));
        }
        let (ours, own) = (median(ours), median(own));
        println!(
            "deployment until it answers {ours:.0} ms, runtime started by hand {own:.0} ms, ratio {:.2}",
            ours / own
        );
        Ok(())
    }

    /// Compares the calls of a function alone and beside one that only computes.
    async fn neighbours(&self) -> Outcome<()> {
        self.deploy("loop", "Deno.serve(() => { for (;;); })")?;
        self.answers("hello").await?;
        let mut p95 = Vec::new();
        for is_beside in [false, true] {
            let mut looping = self.0.connect().await?;
            let request = self.request("loop");
            let beside = async {
                if is_beside {
                    // Ends with status 546.
                    let _ = repeat(&mut looping, &request, 1).await;
                }
            };
            let streams = vec![self.0.connect().await?];
            let hello = self.request("hello");
            let (times, ()) = tokio::join!(load(streams, &hello), beside);
            let mut times = times?;
            times.sort_by(f64::total_cmp);
            p95.push(times[times.len() * 95 / 100]);
        }
        println!(
            "p95 of calls alone {:.3} ms, beside a function that only computes {:.3} ms, ratio {:.2}",
            p95[0],
            p95[1],
            p95[1] / p95[0]
        );
        Ok(())
    }

    /// Compares the memory of many processes with that of one.
    async fn memory(&self) -> Outcome<()> {
        self.end_all().await?;
        self.answers("hello").await?;
        let sum =
            |pids: Vec<i32>| -> Outcome<u64> { pids.into_iter().map(proportional_memory).sum() };
        let one = sum(self.pids()?)?;
        for number in 1..FUNCTIONS {
            self.deploy(&format!("many{number}"), HELLO)?;
        }
        let pids = self.pids()?;
        let count = pids.len();
        let all = sum(pids)?;
        println!(
            "memory of one function {one} kB proportional, of {count} {all} kB, ratio {:.1}; of Gantry {} kB resident",
            ratio(all, one),
            self.0.gantry.memory()?
        );
        Ok(())
    }
}

/// Returns the ratio of two amounts of memory in kB.
#[expect(
    clippy::cast_precision_loss,
    reason = "a memory of 2^52 kB does not exist"
)]
fn ratio(amount: u64, base: u64) -> f64 {
    amount as f64 / base as f64
}

/// Returns the runtime in a folder of kits.
fn program(kits: &Path) -> Outcome<PathBuf> {
    for version in fs::read_dir(kits.join("functions"))?.flatten() {
        let program = version.path().join("bin/deno");
        if program.exists() {
            return Ok(program);
        }
    }
    Err("no runtime in the folder of kits".into())
}

/// Starts the runtime with the same file and returns the time to an answer.
async fn by_hand(program: &Path) -> Outcome<Duration> {
    let place = tempfile::tempdir_in("/tmp")?;
    let (file, socket) = (place.path().join("index.ts"), place.path().join("s"));
    fs::write(&file, HELLO)?;
    let began = Instant::now();
    let mut process = Command::new(program)
        .args(["run", "-A", "--quiet", "--no-lock"])
        .arg(&file)
        .env("DENO_SERVE_ADDRESS", format!("unix:{}", socket.display()))
        .env("DENO_DIR", place.path().join("cache"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let request = "GET /hello HTTP/1.1\r\nHost: x\r\n\r\n";
    let answered = loop {
        if let Ok(mut stream) = UnixStream::connect(&socket).await
            && repeat(&mut stream, request, 1).await.is_ok()
        {
            break Ok(began.elapsed());
        }
        if began.elapsed() > Duration::from_secs(30) {
            break Err("the runtime does not start".into());
        }
        sleep(Duration::from_millis(2)).await;
    };
    let _ = process.kill();
    let _ = process.wait();
    answered
}
