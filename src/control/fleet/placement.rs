//! Chooses the node of a new project.

use std::cmp::Ordering;

use gantry_base::ids::OrganizationId;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::node::{Node, NodeState};
use crate::{
    control::{
        context::ControlContext,
        projects::{
            self, InstanceSize,
            regions::{AvailableRegions, Region},
        },
    },
    platform::error::{Context, Error},
};

/// The requirements of a new project.
#[derive(Debug, Clone, Copy)]
pub struct NewPlacement {
    /// Its organization.
    pub organization: OrganizationId,
    /// Its region.
    pub region: Region,
    /// Its major version of PostgreSQL.
    pub major: u16,
    /// Its compute size.
    pub size: InstanceSize,
}

impl NewPlacement {
    /// Reads the requirements of an existing project from its organization, region, version and
    /// compute size, in columns from `at`.
    pub(super) fn read(row: &Row, at: usize) -> Result<Self, Error> {
        let region = Region::of_code(row.get(at + 1)).ok_or("its region is unknown");
        Ok(Self {
            organization: OrganizationId(row.get(at)),
            region: region.context("reading the region of a project")?,
            major: projects::major(row.get(at + 2)).unwrap_or_default(),
            size: InstanceSize::of_code(row.get(at + 3)).unwrap_or(InstanceSize::Nano),
        })
    }
}

/// A node with the load of its projects.
#[derive(Debug, Clone)]
struct Candidate {
    node: Node,
    /// Memory that its projects may use, in units of a project of the smallest size.
    reserved: i64,
    /// Projects of the organization of the new one.
    of_organization: i64,
}

impl Candidate {
    /// Memory of the projects with the new one, in thousandths of the machine's. 0 if projects are
    /// not bounded.
    fn load(&self, units: i64) -> i64 {
        let project = self.node.project_bytes.unwrap_or_default();
        let bytes = project.saturating_mul(self.reserved.saturating_add(units));
        bytes.saturating_mul(1000) / self.node.memory_bytes.max(1)
    }

    fn compare(&self, other: &Self, units: i64, own: Uuid) -> Ordering {
        let key = |candidate: &Self| {
            (
                candidate.load(units),
                candidate.of_organization,
                candidate.reserved,
                // The node that creates a project needs not be told about it.
                candidate.node.id != own,
                candidate.node.id,
            )
        };
        key(self).cmp(&key(other))
    }
}

/// Returns the node for a new project. A single node takes every project.
///
/// Errors: [`Error::Invalid`] for the region if no node can take the project.
pub async fn choose(
    context: &ControlContext,
    transaction: &Transaction<'_>,
    new: NewPlacement,
) -> Result<Uuid, Error> {
    let own = context.settings.node;
    if context.fleet.is_alone(own) {
        return Ok(own);
    }
    among(transaction, &context.fleet.nodes(), new, own).await
}

/// Returns the node for a project: one of its region that has its version of PostgreSQL, with the
/// least reserved memory, then the fewest projects of its organization, preferably `own`.
///
/// Errors: [`Error::Invalid`] for the region if no node can take the project.
pub(super) async fn among(
    transaction: &Transaction<'_>,
    nodes: &[Node],
    new: NewPlacement,
    own: Uuid,
) -> Result<Uuid, Error> {
    let doing = "choosing the node of a project";
    let sql = "select node, instance_size, count(*), count(*) filter (where organization_id = $1)
               from projects where desired <> 'removed' and node = any($2)
               group by node, instance_size";
    let ids: Vec<Uuid> = nodes.iter().map(|node| node.id).collect();
    let rows = transaction
        .query(sql, &[&new.organization.0, &ids])
        .await
        .context(doing)?;
    let mut candidates: Vec<Candidate> = nodes
        .iter()
        .map(|node| Candidate {
            node: node.clone(),
            reserved: 0,
            of_organization: 0,
        })
        .collect();
    for row in rows {
        let node: Uuid = row.get(0);
        let found = candidates
            .iter_mut()
            .find(|candidate| candidate.node.id == node);
        if let Some(candidate) = found {
            let units = InstanceSize::of_code(row.get(1)).map_or(1, units_of);
            let projects: i64 = row.get(2);
            candidate.reserved += projects.saturating_mul(units);
            candidate.of_organization += row.get::<_, i64>(3);
        }
    }
    place(candidates, &new, own).map_err(|reason| Error::invalid("region", reason))
}

/// Returns the regions of the nodes that take projects: every region, if one of them has none of
/// its own.
pub fn available_regions(nodes: &[Node]) -> AvailableRegions {
    let taking = nodes.iter().filter(|node| node.state == NodeState::Ready);
    let regions: Option<Vec<&str>> = taking.map(|node| node.region.as_deref()).collect();
    AvailableRegions::of_codes(regions.as_deref())
}

fn units_of(size: InstanceSize) -> i64 {
    i64::try_from(size.factor()).unwrap_or(i64::MAX)
}

fn place(candidates: Vec<Candidate>, new: &NewPlacement, own: Uuid) -> Result<Uuid, String> {
    let code = new.region.code();
    let is_of_region = |candidate: &Candidate| {
        let region = candidate.node.region.as_deref();
        region.is_none_or(|region| region == code)
    };
    let in_region: Vec<Candidate> = candidates.into_iter().filter(is_of_region).collect();
    if in_region.is_empty() {
        return Err(format!(
            "has no node: choose one of GET /v1/projects/available-regions instead of {code}"
        ));
    }
    let taking = |candidate: &&Candidate| {
        candidate.node.state == NodeState::Ready
            && candidate.node.engines.contains(&i32::from(new.major))
    };
    let units = units_of(new.size);
    let best = in_region
        .iter()
        .filter(taking)
        .min_by(|one, other| one.compare(other, units, own));
    best.map(|candidate| candidate.node.id).ok_or_else(|| {
        let nodes = in_region.iter().map(|candidate| {
            let reason = match candidate.node.state {
                NodeState::Ready => format!("has no PostgreSQL {}", new.major),
                state => format!("is {}", state.name()),
            };
            format!("{} {reason}", candidate.node.name)
        });
        let nodes: Vec<String> = nodes.collect();
        format!("has no node that takes this project: {}", nodes.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::projects::regions::SmartGroup;

    const GIB: i64 = 1 << 30;

    fn candidate(number: u128) -> Candidate {
        Candidate {
            node: Node {
                id: Uuid::from_u128(number),
                name: format!("node-{number}"),
                region: None,
                address: None,
                state: NodeState::Ready,
                down_since: None,
                version: String::new(),
                engines: vec![17],
                memory_bytes: 16 * GIB,
                project_bytes: Some(GIB / 4),
                disk_free_bytes: None,
                projects: 0,
                is_cordoned: false,
            },
            reserved: 0,
            of_organization: 0,
        }
    }

    fn chosen(candidates: &[Candidate], own: u128) -> Result<u128, String> {
        let new = NewPlacement {
            organization: OrganizationId(1),
            region: Region::EuCentral1,
            major: 17,
            size: InstanceSize::ALL[0],
        };
        let node = place(candidates.to_vec(), &new, Uuid::from_u128(own));
        node.map(|node| node.as_u128())
    }

    #[test]
    fn node_with_the_least_reserved_memory_takes_the_project() {
        let mut nodes = [candidate(1), candidate(2), candidate(3)];
        assert_eq!(chosen(&nodes, 2), Ok(2), "the own one of equal ones");
        nodes[1].reserved = 4;
        assert_eq!(chosen(&nodes, 2), Ok(1));
        nodes[0].reserved = 8;
        nodes[2].reserved = 16;
        assert_eq!(chosen(&nodes, 2), Ok(2));
        nodes[2].node.memory_bytes = 160 * GIB;
        assert_eq!(chosen(&nodes, 2), Ok(3), "a share of the memory counts");
    }

    #[test]
    fn projects_of_an_organization_are_spread() {
        let mut nodes = [candidate(1), candidate(2)];
        nodes[0].of_organization = 1;
        assert_eq!(chosen(&nodes, 1), Ok(2));
        for node in &mut nodes {
            node.node.project_bytes = None;
        }
        assert_eq!(chosen(&nodes, 1), Ok(2), "without bounds of memory too");
    }

    #[test]
    fn nodes_of_other_regions_and_states_are_left_out() {
        let mut nodes = [candidate(1), candidate(2)];
        nodes[0].node.region = Some("us-east-1".to_owned());
        assert_eq!(chosen(&nodes, 1), Ok(2));
        nodes[1].node.state = NodeState::Cordoned;
        let refused = chosen(&nodes, 1).unwrap_err();
        assert!(refused.ends_with("node-2 is cordoned"), "{refused}");
        nodes[1].node.state = NodeState::Ready;
        nodes[1].node.engines = vec![15];
        let refused = chosen(&nodes, 1).unwrap_err();
        assert!(
            refused.ends_with("node-2 has no PostgreSQL 17"),
            "{refused}"
        );
        nodes[1].node.region = Some("us-east-1".to_owned());
        let refused = chosen(&nodes, 1).unwrap_err();
        assert!(refused.contains("available-regions"), "{refused}");
    }

    #[test]
    fn regions_are_those_of_nodes_that_take_projects() {
        let mut nodes = [candidate(1).node, candidate(2).node];
        let all = AvailableRegions::of_codes(None);
        let of = |codes: &[&str]| AvailableRegions::of_codes(Some(codes));
        assert_eq!(available_regions(&nodes), all, "nodes without one take any");
        nodes[0].region = Some("eu-west-1".to_owned());
        assert_eq!(available_regions(&nodes), all);
        nodes[1].region = Some("us-east-1".to_owned());
        let both = of(&["us-east-1", "eu-west-1"]);
        assert_eq!(available_regions(&nodes), both);
        assert_eq!(both.default(), Region::UsEast1);
        assert_eq!(both.of_group(SmartGroup::Emea), Region::EuWest1);
        nodes[1].state = NodeState::Down;
        assert_eq!(available_regions(&nodes), of(&["eu-west-1"]));
        assert_eq!(available_regions(&nodes).default(), Region::EuWest1);
        assert_eq!(available_regions(&[]), all);
    }
}
