//! A model-based test: random histories with power loss and failures at every step.

use proptest::prelude::*;

use super::*;

const PROJECTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    /// Appends lines distributed over `days` days, optionally with a reader offset.
    Append {
        project: usize,
        rows: usize,
        days: i64,
        with_offset: bool,
    },
    /// Advances the clock and runs upkeep.
    Upkeep { seconds: i64 },
    /// Deletes a project.
    Forget { project: usize },
    /// Reads a project.
    Read { project: usize },
    /// Reopens the store, or cuts the power.
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3_usize, 0..5_usize, 1..3_i64, any::<bool>())
            .prop_map(|(project, rows, days, with_offset)| {
                Step::Append { project, rows, days, with_offset }
            }),
        5 => (0..40_i64).prop_map(|seconds| Step::Upkeep { seconds }),
        1 => (0..3_usize).prop_map(|project| Step::Forget { project }),
        2 => (0..3_usize).prop_map(|project| Step::Read { project }),
        1 => Just(Step::Reopen),
    ]
}

/// The expected lines of a project.
#[derive(Debug, Default, Clone)]
struct Expected {
    /// Acknowledged batches of ids. All must be present.
    acknowledged: Vec<Vec<String>>,
    /// Failed appends. None may be present before a restart; each batch may appear as a whole after
    /// one.
    failed: Vec<Vec<String>>,
    /// Lines of a failed deletion. Each may be present.
    deleting: Vec<String>,
}

impl Expected {
    fn check(&self, found: &[String]) {
        let mut expected = self.acknowledged.concat();
        for id in &self.deleting {
            if found.binary_search(id).is_ok() {
                expected.push(id.clone());
            }
        }
        expected.sort();
        assert_eq!(found, expected);
    }
}

struct Simulation {
    disk: SimDisk,
    objects: SimObjects,
    store: Option<Store>,
    expected: BTreeMap<&'static str, Expected>,
    reader_offset: Option<String>,
    /// Values of failed appends, which may be stored instead.
    failed_offsets: Vec<String>,
    now: i64,
    /// Number of appends, which makes ids unique.
    appends: usize,
}

impl Simulation {
    fn options() -> Options {
        Options {
            seal_bytes: 600,
            seal_after: Duration::from_secs(20),
            merge_files: 2,
            grace: Duration::from_secs(15),
            sweep_every: Duration::from_mins(1),
            ..Options::new("unused", "node")
        }
    }

    async fn open(&mut self) {
        let disk = Arc::new(self.disk.clone());
        let objects = Arc::new(self.objects.clone());
        self.store = match Store::open_with(Self::options(), disk, objects).await {
            Ok(store) => Some(store),
            Err(StoreError::Io(_)) => None,
            Err(error) => panic!("{error:?}"),
        };
    }

    /// Cuts the power, restarts without faults and checks the content.
    async fn restart(&mut self) {
        self.store = None;
        let random = self.now.unsigned_abs();
        self.disk.restart();
        self.disk.faults.plan(None, Vec::new(), random);
        self.open().await;
        self.settle().await;
    }

    /// Resolves failed appends by reading the store.
    async fn settle(&mut self) {
        let store = self.store.as_ref().expect("no faults are planned");
        let found = store.reader_offset("m").map(|offset| offset.value);
        assert!(
            found == self.reader_offset
                || found
                    .as_ref()
                    .is_some_and(|it| self.failed_offsets.contains(it)),
            "{found:?} is neither {:?} nor one of {:?}",
            self.reader_offset,
            self.failed_offsets
        );
        self.reader_offset = found;
        self.failed_offsets.clear();
        for project in PROJECTS {
            let found = all(store, project).await;
            let expected = self.expected.entry(project).or_default();
            let failed = std::mem::take(&mut expected.failed);
            for ids in failed {
                if found.binary_search(&ids[0]).is_ok() {
                    expected.acknowledged.push(ids);
                }
            }
            expected.check(&found);
        }
    }

    async fn run(&mut self, step: Step) {
        let Some(store) = &self.store else {
            return self.reopen().await;
        };
        match step {
            Step::Append {
                project,
                rows,
                days,
                with_offset,
            } => {
                self.append(PROJECTS[project], rows, days, with_offset)
                    .await;
            }
            Step::Upkeep { seconds } => {
                self.now += seconds * SECOND;
                store.upkeep(self.now).await;
            }
            Step::Forget { project } => self.forget(PROJECTS[project]).await,
            Step::Read { project } => {
                let found = all(store, PROJECTS[project]).await;
                let expected = self.expected.entry(PROJECTS[project]).or_default();
                expected.check(&found);
            }
            Step::Reopen => self.reopen().await,
        }
    }

    async fn append(&mut self, project: &'static str, rows: usize, days: i64, with_offset: bool) {
        let mut ids = Vec::new();
        let mut events = Vec::new();
        for row in 0..rows {
            let id = format!("{:05}-{row}", self.appends);
            let days_ago = i64::try_from(row).unwrap() % days;
            events.push(event(id.clone(), self.now - days_ago * 86_400 * SECOND));
            ids.push(id);
        }
        let value = self.appends.to_string();
        let reader_offset = with_offset.then(|| ReaderOffset {
            name: "m".into(),
            value: value.clone(),
        });
        self.appends += 1;
        let batch = Batch {
            project: project.into(),
            events,
            reader_offset,
        };
        let store = self.store.as_ref().expect("the store is open");
        let result = store.append(batch).await;
        if result.is_ok() && (rows > 0 || with_offset) {
            self.discard_failed_appends();
        }
        let expected = self.expected.entry(project).or_default();
        let batches = if result.is_ok() {
            &mut expected.acknowledged
        } else {
            &mut expected.failed
        };
        if !ids.is_empty() {
            batches.push(ids);
        }
        match (with_offset, result) {
            (false, _) => {}
            (true, Ok(())) => {
                self.reader_offset = Some(value);
                self.failed_offsets.clear();
            }
            (true, Err(_)) => self.failed_offsets.push(value),
        }
    }

    async fn forget(&mut self, project: &'static str) {
        let store = self.store.as_ref().expect("the store is open");
        let result = store.forget(project).await;
        if result.is_ok() {
            self.discard_failed_appends();
        }
        let expected = self.expected.entry(project).or_default();
        if result.is_ok() {
            *expected = Expected::default();
        } else {
            let acknowledged = std::mem::take(&mut expected.acknowledged);
            expected.deleting.extend(acknowledged.concat());
        }
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.open().await;
        if self.store.is_some() {
            self.settle().await;
        }
    }

    /// A durable write rules out that earlier failed appends appear later.
    fn discard_failed_appends(&mut self) {
        self.failed_offsets.clear();
        for expected in self.expected.values_mut() {
            expected.failed.clear();
        }
    }
}

async fn history(steps: Vec<Step>, power_loss: Option<u64>, failing_steps: Vec<u64>, random: u64) {
    let faults = Faults::default();
    let disk = SimDisk::new(faults.clone());
    let objects = SimObjects {
        inner: Arc::default(),
        faults: faults.clone(),
    };
    let mut simulation = Simulation {
        disk,
        objects,
        store: None,
        expected: BTreeMap::new(),
        reader_offset: None,
        failed_offsets: Vec::new(),
        now: NOW,
        appends: 0,
    };
    simulation.open().await;
    faults.plan(power_loss, failing_steps, random);
    for step in steps {
        if faults.has_lost_power() {
            simulation.restart().await;
            faults.plan(power_loss, Vec::new(), random);
        }
        simulation.run(step).await;
    }
    simulation.restart().await;
    // After enough upkeep all lines are in files.
    let store = simulation.store.as_ref().unwrap();
    for turn in 1..20 {
        store.upkeep(simulation.now + turn * 61 * SECOND).await;
    }
    assert_eq!(store.stats(simulation.now).pending_rows, 0);
    simulation.settle().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_lines_survive_faults_exactly_once(
        steps in proptest::collection::vec(step(), 1..60),
        power_loss in proptest::option::of(0..80_u64),
        failing_steps in proptest::collection::vec(0..120_u64, 0..6),
        random: u64,
    ) {
        block_on(history(steps, power_loss, failing_steps, random));
    }
}
