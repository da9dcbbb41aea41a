//! A model-based test: random histories with power loss and failures at every step.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    sim::{Luck, SimDisk, SimObjects},
    *,
};

const PROJECTS: [&str; 3] = ["alpha", "beta", "gamma"];

/// A step of a history.
#[derive(Debug, Clone)]
enum Act {
    /// Appends lines distributed over `days` days, optionally with a reader offset.
    Append {
        project: usize,
        rows: usize,
        days: i64,
        marked: bool,
    },
    /// Advances the clock and runs upkeep.
    Upkeep { seconds: i64 },
    /// Deletes a project.
    Forget { project: usize },
    /// Reads a project.
    Look { project: usize },
    /// Reopens the store, or cuts the power.
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0..3_usize, 0..5_usize, 1..3_i64, any::<bool>())
            .prop_map(|(project, rows, days, marked)| Act::Append { project, rows, days, marked }),
        5 => (0..40_i64).prop_map(|seconds| Act::Upkeep { seconds }),
        1 => (0..3_usize).prop_map(|project| Act::Forget { project }),
        2 => (0..3_usize).prop_map(|project| Act::Look { project }),
        1 => Just(Act::Reopen),
    ]
}

/// The expected lines of a project.
#[derive(Debug, Default, Clone)]
struct Expected {
    /// Acknowledged batches of ids. All must be present.
    kept: Vec<Vec<String>>,
    /// Failed appends. None may be present before a restart; each batch may appear as a whole after
    /// one.
    open: Vec<Vec<String>>,
    /// Lines of a failed deletion. Each may be present.
    fading: Vec<String>,
}

impl Expected {
    fn check(&self, found: &[String]) {
        let mut wanted = self.kept.concat();
        wanted.extend(
            self.fading
                .iter()
                .filter(|id| found.binary_search(id).is_ok())
                .cloned(),
        );
        wanted.sort();
        assert_eq!(found, wanted);
    }
}

struct World {
    disk: SimDisk,
    objects: SimObjects,
    store: Option<Store>,
    expected: BTreeMap<&'static str, Expected>,
    /// The acknowledged reader offset and the values of failed appends, which may be present
    /// instead.
    mark: (Option<String>, Vec<String>),
    now: i64,
    made: usize,
}

impl World {
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
        let (disk, objects) = (Arc::new(self.disk.clone()), Arc::new(self.objects.clone()));
        self.store = match Store::over(Self::options(), disk, objects).await {
            Ok(store) => Some(store),
            Err(StoreError::Io(_)) => None,
            Err(error) => panic!("{error:?}"),
        };
    }

    /// Cuts the power, restarts without faults and checks the content.
    async fn restart(&mut self) {
        self.store = None;
        let dice = self.now.unsigned_abs();
        self.disk.restart();
        self.disk.luck.plan(None, Vec::new(), dice);
        self.open().await;
        self.settle().await;
    }

    /// Resolves failed appends by reading the store.
    async fn settle(&mut self) {
        let store = self.store.as_ref().expect("nothing fails");
        let mark = store.mark("m").map(|mark| mark.value);
        assert!(
            mark == self.mark.0 || mark.as_ref().is_some_and(|it| self.mark.1.contains(it)),
            "{mark:?} of {:?}",
            self.mark
        );
        self.mark = (mark, Vec::new());
        for project in PROJECTS {
            let found = all(store, project).await;
            let expected = self.expected.entry(project).or_default();
            let open = std::mem::take(&mut expected.open);
            expected.kept.extend(
                open.into_iter()
                    .filter(|ids| found.binary_search(&ids[0]).is_ok()),
            );
            expected.check(&found);
        }
    }

    async fn act(&mut self, act: Act) {
        let Some(store) = &self.store else {
            return self.reopen().await;
        };
        match act {
            Act::Append {
                project,
                rows,
                days,
                marked,
            } => {
                let project = PROJECTS[project];
                let ids: Vec<_> = (0..rows)
                    .map(|row| format!("{:05}-{row}", self.made))
                    .collect();
                let stamp =
                    |row: usize| self.now - (i64::try_from(row).unwrap() % days) * 86_400 * SECOND;
                let events = ids
                    .iter()
                    .enumerate()
                    .map(|(row, id)| event(id.clone(), stamp(row)))
                    .collect();
                let value = self.made.to_string();
                let mark = marked.then(|| Mark {
                    name: "m".into(),
                    value: value.clone(),
                });
                self.made += 1;
                let done = store
                    .append(Batch {
                        project: project.into(),
                        events,
                        mark,
                    })
                    .await;
                let written = done.is_ok() && (rows > 0 || marked);
                if written {
                    self.close();
                }
                let expected = self.expected.entry(project).or_default();
                let ids = Some(ids).filter(|ids| !ids.is_empty());
                if let Ok(()) = done {
                    expected.kept.extend(ids);
                    if marked {
                        self.mark = (Some(value), Vec::new());
                    }
                } else {
                    expected.open.extend(ids);
                    if marked {
                        self.mark.1.push(value);
                    }
                }
            }
            Act::Upkeep { seconds } => {
                self.now += seconds * SECOND;
                store.upkeep(self.now).await;
            }
            Act::Forget { project } => {
                let done = store.forget(PROJECTS[project]).await;
                if done.is_ok() {
                    self.close();
                }
                let expected = self.expected.entry(PROJECTS[project]).or_default();
                match done {
                    Ok(()) => *expected = Expected::default(),
                    Err(_) => expected.fading.extend(expected.kept.drain(..).flatten()),
                }
            }
            Act::Look { project } => {
                let found = all(store, PROJECTS[project]).await;
                self.expected
                    .entry(PROJECTS[project])
                    .or_default()
                    .check(&found);
            }
            Act::Reopen => self.reopen().await,
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
    fn close(&mut self) {
        self.mark.1.clear();
        self.expected
            .values_mut()
            .for_each(|expected| expected.open.clear());
    }
}

async fn history(acts: Vec<Act>, cut: Option<u64>, fail: Vec<u64>, dice: u64) {
    let luck = Luck::default();
    let disk = SimDisk::new(luck.clone());
    let objects = SimObjects {
        inner: Arc::default(),
        luck: luck.clone(),
    };
    let mut world = World {
        disk,
        objects,
        store: None,
        expected: BTreeMap::new(),
        mark: (None, Vec::new()),
        now: NOW,
        made: 0,
    };
    world.open().await;
    luck.plan(cut, fail, dice);
    for act in acts {
        if luck.is_cut() {
            world.restart().await;
            luck.plan(cut, Vec::new(), dice);
        }
        world.act(act).await;
    }
    world.restart().await;
    // After enough upkeep all lines are in files.
    for turn in 1..20 {
        world
            .store
            .as_ref()
            .unwrap()
            .upkeep(world.now + turn * 61 * SECOND)
            .await;
    }
    assert_eq!(
        world.store.as_ref().unwrap().stats(world.now).pending_rows,
        0
    );
    world.settle().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_is_there_twice(
        acts in proptest::collection::vec(act(), 1..60),
        cut in proptest::option::of(0..80_u64),
        fail in proptest::collection::vec(0..120_u64, 0..6),
        dice: u64,
    ) {
        block_on(history(acts, cut, fail, dice));
    }
}
