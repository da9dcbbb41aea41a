//! `cargo bench --profile requests --bench services -- KITS`: the Data API of a real `gantry dev`,
//! with PostgREST from the folder `KITS` (as for `--services-dir`).
//!
//! Each figure is a ratio of two measurements of one run, interleaved: through the service proxy
//! and straight to the socket of PostgREST; straight, and the same SQL by prepared statements; the
//! first request to a stopped instance and a process started by hand; with and without exchange of
//! a key. Then the memory of an instance; and many projects (`GANTRY_BENCH_PROJECTS`), first one
//! after another, then all at once.

#![expect(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod dev;
mod edge_project;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use dev::{Outcome, PASSWORD};
use edge_project::{
    EdgeProject, REQUESTS, end_all, load, median, millis, processor_ticks, proportional_memory,
    repeat,
};
use futures_util::future::try_join_all;
use tokio::{net::UnixStream, time::sleep};
use tokio_postgres::{Client, NoTls};

const ROUNDS: usize = 5;
/// Starts of an instance.
const STARTS: usize = 4;
const PATH: &str = "/todos?select=*";
const TABLE: &str = "{\"query\": \"create table if not exists todos (id int, task text); grant select on todos to anon; \
      insert into todos values (1, 'look at the tall cranes')\"}";
/// Projects that are started one after another, and all at once.
const PROJECTS: usize = 100;

fn main() -> Outcome<()> {
    edge_project::run("rest", async |kits| run(&kits).await)
}

async fn run(kits: &Path) -> Outcome<()> {
    let place = tempfile::tempdir_in("/tmp")?;
    let setup = Setup::new(place.path(), kits).await?;
    setup.latency().await?;
    setup.exchange().await?;
    setup.starts(kits).await?;
    println!(
        "memory of an instance after use: {} kB proportional; of Gantry: {} kB resident",
        proportional_memory(setup.instance()?)?,
        setup.edge.gantry.memory()?
    );
    setup.many().await
}

/// A project with a table, and the folder of its instance.
struct Setup {
    edge: EdgeProject,
    folder: PathBuf,
}

impl Setup {
    async fn new(place: &Path, kits: &Path) -> Outcome<Self> {
        let edge = EdgeProject::new(place, kits).await?;
        let setup = Self {
            folder: edge.home.join("run").join(format!("{}.rest", edge.project)),
            edge,
        };
        setup.create_table(&setup.edge.host)?;
        setup.first_request().await?;
        Ok(setup)
    }

    /// A request through the service proxy with these header lines.
    fn through(&self, headers: &str) -> Arc<str> {
        request(&self.edge.host, headers)
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("i/s")
    }

    /// Sends a request until it succeeds, and returns the time.
    async fn first_request(&self) -> Outcome<Duration> {
        self.first_row(&self.edge.host, &self.edge.publishable)
            .await
    }

    /// Sends a request to a project until it succeeds, and returns the time.
    async fn first_row(&self, host: &str, key: &str) -> Outcome<Duration> {
        let began = Instant::now();
        let request = request(host, &format!("apikey: {key}"));
        loop {
            // Connections beyond the limit of unfinished ones are closed.
            let answer = async {
                let mut stream = self.edge.connect_to(host).await?;
                repeat(&mut stream, &request, 1).await?;
                Outcome::Ok(())
            };
            match answer.await {
                Ok(()) => return Ok(began.elapsed()),
                Err(error) if began.elapsed() > Duration::from_mins(1) => {
                    return Err(format!("the Data API does not start: {error}").into());
                }
                Err(_) => sleep(Duration::from_millis(5)).await,
            }
        }
    }

    fn instance(&self) -> Outcome<i32> {
        instance(&self.folder)
    }

    /// The processes of PostgREST of all projects.
    fn instances(&self) -> Outcome<Vec<i32>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(self.edge.home.join("run"))? {
            let folder = entry?.path();
            if folder
                .extension()
                .is_some_and(|extension| extension == "rest")
                && let Ok(pid) = instance(&folder)
                && Path::new("/proc").join(pid.to_string()).exists()
            {
                pids.push(pid);
            }
        }
        Ok(pids)
    }

    /// Starts PostgREST in many projects one after another, and then in all at once.
    async fn many(&self) -> Outcome<()> {
        let count = env::var("GANTRY_BENCH_PROJECTS").ok();
        let count = count.and_then(|text| text.parse().ok()).unwrap_or(PROJECTS);
        let mut projects = Vec::new();
        let mut waits = Vec::new();
        for number in 0..count {
            let (host, key) = self.edge.add_project(&format!("many-{number}")).await?;
            self.create_table(&host)?;
            waits.push(millis(self.first_row(&host, &key).await?));
            projects.push((host, key));
        }
        let pids = self.instances()?;
        let sum = pids.iter().map(|pid| proportional_memory(*pid));
        let sum: u64 = sum.sum::<Outcome<u64>>()?;
        println!(
            "{count} projects one after another: median wait {:.0} ms; {} processes with {sum} kB proportional; Gantry {} kB resident",
            median(waits),
            pids.len(),
            self.edge.gantry.memory()?
        );

        let keyed = self.through(&format!("apikey: {}", self.edge.publishable));
        let mut stream = self.edge.connect().await?;
        let alone = repeat(&mut stream, &keyed, REQUESTS).await?;
        let own = self.instance()?;
        end_all(|| {
            let all = self.instances()?.into_iter();
            Ok(all.filter(|pid| *pid != own).collect())
        })
        .await?;
        let done = AtomicBool::new(false);
        let storm = async {
            let all = projects.iter().map(|(host, key)| self.first_row(host, key));
            let waits = try_join_all(all).await;
            done.store(true, Ordering::Relaxed);
            waits
        };
        let neighbour = async {
            let mut times = Vec::new();
            while !done.load(Ordering::Relaxed) {
                times.extend(repeat(&mut stream, &keyed, 1).await?);
            }
            Outcome::Ok(times)
        };
        let (waits, beside) = tokio::join!(storm, neighbour);
        let waits: Vec<f64> = waits?.into_iter().map(millis).collect();
        let (alone, beside) = (p95(alone), p95(beside?));
        let longest = waits.iter().copied().fold(0.0, f64::max);
        let median = median(waits);
        println!(
            "all at once: median wait {median:.0} ms, longest {longest:.0} ms, ratio {:.2}; p95 of another project before {alone:.2} ms, during {beside:.2} ms, ratio {:.2}",
            longest / median,
            beside / alone
        );
        Ok(())
    }

    /// Creates the table of the requests in the project of a host.
    fn create_table(&self, host: &str) -> Outcome<()> {
        let project = host.split('.').next().unwrap_or_default();
        let path = format!("/v1/projects/{project}/database/query");
        loop {
            let answer = self.edge.gantry.send("POST", &path, TABLE)?;
            if answer.starts_with("HTTP/1.1 201") {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Compares three ways to the same rows.
    async fn latency(&self) -> Outcome<()> {
        // The same token on both ways: PostgREST verifies its signature with each request.
        let token = format!("Authorization: Bearer {}", self.edge.anon);
        let keyed = self.through(&format!("apikey: {}\r\n{token}", self.edge.anon));
        let straight: Arc<str> =
            format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n{token}\r\n\r\n").into();
        let database = self.database().await?;
        for connections in [1, 32] {
            let (mut edge, mut own, mut sql) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                let mut streams = Vec::new();
                for _ in 0..connections {
                    streams.push(self.edge.connect().await?);
                }
                edge.extend(load(streams, &keyed).await?);
                let mut streams = Vec::new();
                for _ in 0..connections {
                    streams.push(UnixStream::connect(self.socket()).await?);
                }
                own.extend(load(streams, &straight).await?);
                if connections == 1 {
                    sql.extend(transactions(&database).await?);
                }
            }
            let (edge, own) = (median(edge), median(own));
            println!(
                "{connections} connections, p50: through the proxy {edge:.3} ms, straight {own:.3} ms, ratio {:.2}",
                edge / own
            );
            if !sql.is_empty() {
                let sql = median(sql);
                println!(
                    "the same SQL, prepared: {sql:.3} ms, ratio of straight {:.2}",
                    own / sql
                );
            }
        }
        Ok(())
    }

    async fn database(&self) -> Outcome<Client> {
        let folder = self.folder.with_file_name(&self.edge.project);
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(folder)
            .user("postgres")
            .password(PASSWORD)
            .dbname("postgres");
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Compares the processor time of the proxy with a key that is exchanged and one that is not.
    async fn exchange(&self) -> Outcome<()> {
        let exchanged = self.through(&format!("apikey: {}", self.edge.publishable));
        let unchanged = self.through(&format!(
            "apikey: {0}\r\nAuthorization: Bearer {0}",
            self.edge.anon
        ));
        let (mut with, mut without) = (0, 0);
        for _ in 0..ROUNDS {
            for (request, ticks) in [(&exchanged, &mut with), (&unchanged, &mut without)] {
                let mut streams = Vec::new();
                for _ in 0..32 {
                    streams.push(self.edge.connect().await?);
                }
                let began = processor_ticks(self.edge.gantry.pid())?;
                load(streams, request).await?;
                *ticks += processor_ticks(self.edge.gantry.pid())? - began;
            }
        }
        println!(
            "processor time of the proxy with exchange of a key / with a legacy key: {:.2}",
            f64::from(with) / f64::from(without)
        );
        Ok(())
    }

    /// Compares first requests to a stopped instance with processes that are started by hand.
    async fn starts(&self, kits: &Path) -> Outcome<()> {
        let program = program(kits)?;
        let config = fs::read_to_string(self.folder.join("i/rest.conf"))?;
        let (mut ours, mut own) = (Vec::new(), Vec::new());
        for _ in 0..STARTS {
            let config = if ours.is_empty() {
                config.clone()
            } else {
                fs::read_to_string(self.folder.join("i/rest.conf"))?
            };
            own.push(millis(self.by_hand(&program, &config).await?));
            end_all(|| self.instances()).await?;
            ours.push(millis(self.first_request().await?));
        }
        let (ours, own) = (median(ours), median(own));
        println!(
            "first request to a stopped instance {ours:.0} ms, to a process started by hand {own:.0} ms, ratio {:.2}",
            ours / own
        );
        Ok(())
    }

    /// Starts the program with the configuration of the instance and another socket. Returns the
    /// time to a row.
    async fn by_hand(&self, program: &Path, config: &str) -> Outcome<Duration> {
        let place = tempfile::tempdir_in("/tmp")?;
        let socket = place.path().join("s");
        let lines: Vec<String> = config
            .lines()
            .map(|line| match line.split(' ').next() {
                Some("server-unix-socket") => {
                    format!("server-unix-socket = \"{}\"", socket.display())
                }
                _ => line.to_owned(),
            })
            .collect();
        let file = place.path().join("rest.conf");
        fs::write(&file, lines.join("\n"))?;
        let began = Instant::now();
        let _process = Process(
            Command::new(program)
                .arg(&file)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        let request: Arc<str> = format!("GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n").into();
        loop {
            if let Ok(mut stream) = UnixStream::connect(&socket).await
                && repeat(&mut stream, &request, 1).await.is_ok()
            {
                return Ok(began.elapsed());
            }
            if began.elapsed() > Duration::from_secs(30) {
                return Err("the process does not start".into());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A request through the service proxy to a project, with these header lines.
fn request(host: &str, headers: &str) -> Arc<str> {
    format!("GET /rest/v1{PATH} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n\r\n").into()
}

/// Returns the process in the folder of an instance.
fn instance(folder: &Path) -> Outcome<i32> {
    let record = fs::read_to_string(folder.join("launched"))?;
    Ok(record.split(' ').next().unwrap_or_default().parse()?)
}

fn p95(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() * 95 / 100]
}

/// A process that ends with the value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns PostgREST in a folder of kits.
fn program(kits: &Path) -> Outcome<PathBuf> {
    let folder = kits.join("rest");
    let listed = fs::read_dir(&folder);
    let listed = listed.map_err(|error| format!("{}: {error}", folder.display()))?;
    for version in listed.flatten() {
        let program = version.path().join("bin/postgrest");
        if program.exists() {
            return Ok(program);
        }
    }
    Err("no PostgREST in the folder of kits".into())
}

/// Runs the SQL of a request to PostgREST, prepared.
async fn transactions(database: &Client) -> Outcome<Vec<f64>> {
    let settings = database
        .prepare(
            "select set_config('search_path', '\"public\", \"extensions\"', true), \
             set_config('role', 'anon', true), set_config('request.jwt.claims', $1, true), \
             set_config('request.method', 'GET', true), set_config('request.path', $2, true), \
             set_config('request.headers', '{}', true), set_config('request.cookies', '{}', true)",
        )
        .await?;
    let rows = database
        .prepare(
            "with source as (select t.* from public.todos t limit 1000) \
             select null::bigint, count(s), coalesce(json_agg(s), '[]')::text, \
             nullif(current_setting('response.headers', true), ''), \
             nullif(current_setting('response.status', true), '') from (select * from source) s",
        )
        .await?;
    let mut times = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        let began = Instant::now();
        database.batch_execute("begin read only").await?;
        database
            .query(&settings, &[&"{\"role\":\"anon\"}", &"/todos"])
            .await?;
        database.query(&rows, &[]).await?;
        database.batch_execute("commit").await?;
        times.push(millis(began.elapsed()));
    }
    Ok(times)
}
