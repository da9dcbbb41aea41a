//! `cargo bench --bench shared_limits`: decisions per second with counters that several nodes
//! share.
//!
//! Compares the batched statement of the control database with the same statement for each
//! decision, and with a plain upsert for each, which counts refused requests and trusts any clock.
//! All are pipelined over one connection and run in turns in one process against one server, so
//! that other load affects all of them; the ratios are what counts. Valkey or Redis is measured as
//! well if one is installed.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a bench measures time and prints what it found"
)]

use std::{
    env,
    error::Error,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use gantry::platform::{
    db::Db,
    rate_limits::{
        self, CounterKey, CounterScope, Identifier, Limit, LimitKey, Memory, Options, RateLimiter,
        Shared, StoreMetrics, Window, per,
    },
};
use gantry_base::{
    clock::{Clock, Entropy},
    ids::UserId,
};
use gantry_node::{
    clusters::{Control, Home, server::Host},
    engines::Engine,
    supervisor::{Account, Launcher},
};
use tokio::{net::UnixStream, task::JoinSet};
use tokio_postgres::{Client, NoTls, Statement, types::ToSql};

const KEYS: usize = 10_000;
const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_millis(700);
/// Concurrent requests.
const CALLERS: [usize; 3] = [1, 32, 256];
/// Never reached: the benchmark measures counting, not cached refusals.
static WINDOWS: &[Window] = &[per(1_000_000_000, 3600), per(1_000_000_000, 1)];
static LIMIT: Limit = Limit {
    key: LimitKey::Path,
    windows: WINDOWS,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(run())
}

async fn run() -> Outcome<()> {
    let dir = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let home = Arc::new(Home::open(dir.path(), Account::for_servers()?)?);
    let launcher = Launcher {
        program: env!("CARGO_BIN_EXE_gantry").into(),
        ..Launcher::default()
    };
    let control = Control::ensure(
        &home,
        &Host {
            engine: Engine::find(None)?,
            launcher,
        },
        &Entropy::system(),
    )
    .await?;
    let outcome = compare(&control, dir.path()).await;
    control.stop().await?;
    outcome
}

async fn compare(control: &Control, dir: &Path) -> Outcome<()> {
    let db = Db::new(control.config())?;
    db.migrate().await?;
    let plain = Way::Single(Arc::new(Single::new(control, Decision::Plain).await?));
    let batched = Way::Counted(shared(&db, "postgres").await?);
    let single = Way::Single(Arc::new(Single::new(control, Decision::Whole).await?));
    let mut valkey = Valkey::start(dir).await?;
    let scripted = match &valkey {
        Some(valkey) => Some(Way::Counted(shared(&db, &valkey.url()).await?)),
        None => None,
    };
    println!("decisions a second, median of {ROUNDS} rounds; two windows, {KEYS} keys, one node");
    println!(
        "           a plain upsert each    the statement each      batched: of plain    of each       Valkey   CPU µs/decision"
    );
    for callers in CALLERS {
        let mut rounds = Vec::new();
        for round in 0..=ROUNDS {
            let (upserts, each) = (plain.rate(callers).await, single.rate(callers).await);
            let before = cpu();
            let batch = batched.rate(callers).await;
            let micros = (cpu() - before) * 1e6 / (batch * ROUND.as_secs_f64());
            let script = match &scripted {
                Some(way) => way.rate(callers).await,
                None => 0.0,
            };
            // The first round is a warm-up.
            if round > 0 {
                rounds.push([
                    upserts,
                    each,
                    batch,
                    batch / upserts,
                    batch / each,
                    script,
                    micros,
                ]);
            }
        }
        let [upserts, each, batch, of_plain, of_each, script, micros] =
            std::array::from_fn(|column| {
                median(rounds.iter().map(|round| round[column]).collect())
            });
        println!(
            "{callers:>8} {upserts:>21.0} {each:>21.0} {batch:>12.0} {of_plain:>9.2} {of_each:>10.2} {script:>12.0} {micros:>17.1}"
        );
    }
    if let Some(valkey) = &mut valkey {
        valkey.0.kill()?;
        valkey.0.wait()?;
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor seconds of this process: the cost of the node.
fn cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|text| text.parse::<f64>().ok())
            .unwrap_or_default()
    };
    (ticks(11) + ticks(12)) / 100.0
}

async fn shared(db: &Db, url: &str) -> Outcome<Arc<RateLimiter>> {
    // A long deadline: on a busy machine a late response must be slow, not counted elsewhere.
    let options = Options {
        url: Some(url.into()),
        deadline: Duration::from_secs(10),
    };
    let store = options.store(db)?.ok_or("no store")?;
    let limits = Arc::new(RateLimiter::new(
        std::iter::once(("bench", &LIMIT)),
        Memory::default(),
        Some(Shared::new(
            store,
            Entropy::system().letters(20),
            options.deadline,
            Clock::system(),
            StoreMetrics::default(),
        )),
    ));
    while !limits.take(key(0), WINDOWS, 0).await.is_shared() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(limits)
}

fn key(number: usize) -> CounterKey {
    CounterKey {
        identifier: Identifier::User(UserId(i64::try_from(number % KEYS).unwrap_or(0))),
        scope: CounterScope::User,
        operation: 0,
    }
}

#[derive(Clone)]
enum Way {
    Single(Arc<Single>),
    Counted(Arc<RateLimiter>),
}

impl Way {
    /// Decisions per second with this many callers.
    async fn rate(&self, callers: usize) -> f64 {
        let started = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let way = self.clone();
            tasks.spawn(async move {
                let (mut done, mut number) = (0_u32, caller * 7919);
                while started.elapsed() < ROUND {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    match &way {
                        Self::Single(single) => single.take(number >> 33).await,
                        Self::Counted(limits) => {
                            assert!(limits.take(key(number >> 33), WINDOWS, 0).await.is_shared());
                        }
                    }
                    done += 1;
                }
                done
            });
        }
        let done: u32 = tasks.join_all().await.into_iter().sum();
        f64::from(done) / started.elapsed().as_secs_f64()
    }
}

/// One statement per decision.
struct Single {
    client: Client,
    take: Statement,
    decision: Decision,
}

#[derive(Clone, Copy, PartialEq)]
enum Decision {
    /// An upsert that counts.
    Plain,
    /// The statement that Gantry batches.
    Whole,
}

const PLAIN: &str = "insert into singles as c values ($1, 1, clock_timestamp() + interval '1 hour', 1, clock_timestamp() + interval '1 second') \
                     on conflict (key) do update set \
                     used_1 = case when c.ends_1 > clock_timestamp() then c.used_1 + 1 else 1 end, \
                     ends_1 = case when c.ends_1 > clock_timestamp() then c.ends_1 else excluded.ends_1 end, \
                     used_2 = case when c.ends_2 > clock_timestamp() then c.used_2 + 1 else 1 end, \
                     ends_2 = case when c.ends_2 > clock_timestamp() then c.ends_2 else excluded.ends_2 end \
                     returning used_1, ends_1 - clock_timestamp() > interval '0', used_2, ends_2 - clock_timestamp() > interval '0'";

impl Single {
    async fn new(control: &Control, decision: Decision) -> Outcome<Self> {
        let (client, connection) = control.config().connect(NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "set synchronous_commit = off; set plan_cache_mode = force_generic_plan; set jit = off; \
                 create unlogged table if not exists singles (key text collate \"C\" primary key, used_1 int not null, \
                 ends_1 timestamptz not null, used_2 int not null, ends_2 timestamptz not null) with (fillfactor = 70)",
            )
            .await?;
        let take = client
            .prepare(if decision == Decision::Plain {
                PLAIN
            } else {
                rate_limits::DECISION
            })
            .await?;
        Ok(Self {
            client,
            take,
            decision,
        })
    }

    async fn take(&self, number: usize) {
        // A separate key, so that the two do not count in one row.
        let key = format!(
            "{}/u{}/-",
            if self.decision == Decision::Plain {
                "bench"
            } else {
                "each"
            },
            number % KEYS
        );
        let row = match self.decision {
            Decision::Plain => self.client.query_one(&self.take, &[&key]).await,
            Decision::Whole => {
                let (limits, millis): (Vec<_>, Vec<_>) = WINDOWS
                    .iter()
                    .map(|window| (vec![1_000_000_000_i32], vec![i64::from(window.secs) * 1000]))
                    .unzip();
                let parameters: [&(dyn ToSql + Sync); 6] = [
                    &vec![key],
                    &limits[0],
                    &millis[0],
                    &limits[1],
                    &millis[1],
                    &vec![1_i32],
                ];
                self.client.query_one(&self.take, &parameters).await
            }
        };
        assert!(
            row.expect("a counter")
                .get::<_, i32>(usize::from(self.decision == Decision::Whole))
                > 0
        );
    }
}

struct Valkey(Child, PathBuf);

impl Valkey {
    async fn start(dir: &Path) -> Outcome<Option<Self>> {
        let path = env::var_os("PATH").unwrap_or_default();
        let mut programs = ["valkey-server", "redis-server"]
            .iter()
            .flat_map(|name| env::split_paths(&path).map(move |dir| dir.join(name)));
        let Some(program) = programs.find(|file| file.is_file()) else {
            return Ok(None);
        };
        let socket = dir.join("valkey.sock");
        let process = Command::new(program)
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()?;
        while UnixStream::connect(&socket).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(Some(Self(process, socket)))
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.1.display())
    }
}
