//! Saved positions of the deliveries of this process.

use std::{collections::HashMap, sync::Arc};

use gantry_base::ids::ProjectRef;
use gantry_logs::store::Store;
use parking_lot::Mutex;
use uuid::Uuid;

use super::drains::LogDrain;

/// Saved positions of the drains of each project and store. `None`: not known yet.
#[derive(Default)]
pub(super) struct Positions(Mutex<HashMap<(ProjectRef, String), DrainLines>>);

/// Line numbers by drain.
type DrainLines = HashMap<Uuid, Option<u64>>;

impl Positions {
    /// Stores the position of a drain. Returns the line that all drains of the project reached.
    pub(super) fn advance(
        &self,
        (project, store): (&ProjectRef, &str),
        drain: Uuid,
        line: u64,
    ) -> Option<u64> {
        let mut positions = self.0.lock();
        let drains = positions.get_mut(&(project.clone(), store.to_owned()))?;
        *drains.get_mut(&drain)? = Some(line);
        let all: Option<Vec<u64>> = drains.values().copied().collect();
        all?.into_iter().min()
    }

    /// Sets which drains exist.
    pub(super) fn set(&self, drains: &[(ProjectRef, LogDrain)], stores: &[Arc<Store>]) {
        let mut positions = self.0.lock();
        let mut next: HashMap<_, DrainLines> = HashMap::new();
        for (project, drain) in drains {
            for store in stores {
                let place = (project.clone(), store.node().to_owned());
                let known = positions.get(&place).and_then(|it| it.get(&drain.id));
                let line = known.copied().flatten();
                next.entry(place).or_default().insert(drain.id, line);
            }
        }
        *positions = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_released_when_all_drains_passed_them() {
        let positions = Positions::default();
        let project: ProjectRef = "abcdefghijklmnopqrst".parse().unwrap();
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let place = (&project, "n");
        assert_eq!(positions.advance(place, one, 5), None);
        let drains = HashMap::from([(one, None), (two, None)]);
        positions
            .0
            .lock()
            .insert((project.clone(), "n".to_owned()), drains);
        assert_eq!(positions.advance(place, one, 5), None);
        assert_eq!(positions.advance(place, two, 3), Some(3));
        assert_eq!(positions.advance(place, two, 9), Some(5));
        assert_eq!(positions.advance(place, Uuid::from_u128(3), 0), None);
    }
}
