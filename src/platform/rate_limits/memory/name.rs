//! Names of counters: 64-bit hashes of keys.
//!
//! Whole keys would triple the memory and cost another cache miss per request. Two keys with equal
//! hashes share a counter, which refuses too early, never too late.
//!
//! The hash is multilinear (Lemire and Kaser, "Strongly universal string hashing is fast"): the top
//! 64 bits of `add + by₁·word₁ + by₂·word₂ + by₃·word₃` modulo 2¹²⁸, with a secret random `add` and
//! `by`. Two different keys, chosen without knowledge of the secret, collide with probability 2⁻⁶⁴.
//! With a million live counters, some pair collides with probability 2.7·10⁻⁸, and a new key
//! collides with probability 5·10⁻¹⁴.
//!
//! The hash is implemented here and its secret is kept in the snapshot, so that names are valid
//! across restarts and versions. For the same reason an operation is hashed by its id and not by
//! its index.

use sha2::{Digest, Sha256};

use crate::platform::rate_limits::counter::{CounterKey, CounterScope, Identifier};

/// The secret of the hash.
pub(in crate::platform::rate_limits) type Seed = [u8; 32];

/// Low bits of an operation's code that are reserved for the rest of the key.
const CODE_SHIFT: u32 = 16;

/// Computes the names of keys.
#[derive(Debug)]
pub(super) struct KeyHasher {
    add: u128,
    by: [u128; 3],
    /// Codes of the operations, in the order of [`CounterKey::operation`].
    operations: Box<[u64]>,
    seed: Seed,
}

/// The name of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct CounterName {
    pub(super) hash: u64,
    /// Code of the operation; its 16 low bits are zero.
    pub(super) operation: u64,
}

impl KeyHasher {
    pub(super) fn new(seed: Seed, operations: &[&str]) -> Self {
        let number = |label: &[u8]| {
            let digest: [u8; 32] = Sha256::new()
                .chain_update(seed)
                .chain_update(label)
                .finalize()
                .into();
            let (low, _) = digest.split_at(16);
            low.iter()
                .fold(0, |number, byte| number << 8 | u128::from(*byte))
        };
        let operations = operations.iter().map(|id| code(id)).collect();
        Self {
            add: number(b"add"),
            by: [
                number(b"identifier"),
                number(b"scope"),
                number(b"operation"),
            ],
            operations,
            seed,
        }
    }

    pub(super) fn seed(&self) -> Seed {
        self.seed
    }

    #[inline]
    pub(super) fn name(&self, key: &CounterKey) -> CounterName {
        // An operation without an id has its index as code; codes of ids are larger.
        let operation = self
            .operations
            .get(usize::from(key.operation))
            .copied()
            .unwrap_or_else(|| u64::from(key.operation) << CODE_SHIFT);
        let (who, identifier) = match key.identifier {
            Identifier::User(user) => (0, user.0.cast_unsigned()),
            Identifier::Session(user) => (8, user.0.cast_unsigned()),
            Identifier::Application(application) => (9, application.0.cast_unsigned()),
            Identifier::Address(address) => (1, address),
        };
        let (what, scope) = match key.scope {
            CounterScope::User => (0, 0),
            CounterScope::Organization(organization) => (2, organization.0.cast_unsigned()),
            CounterScope::Project(project) => (4, project.0.cast_unsigned()),
            CounterScope::Unresolved => (6, 0),
            CounterScope::LookUps => (6, 1),
        };
        let words = [identifier, scope, operation | what | who];
        let sum = words.iter().zip(self.by).fold(self.add, |sum, (word, by)| {
            sum.wrapping_add(by.wrapping_mul(u128::from(*word)))
        });
        CounterName {
            hash: scatter((sum >> 64) as u64),
            operation,
        }
    }
}

/// Scatters the evenly spaced sums of neighbouring keys. `SplitMix64`'s finalizer is a bijection,
/// so different sums stay different.
#[inline]
fn scatter(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// Returns the code of an operation: 48 bits of its id's digest, above 2³² except in one of 65,536
/// cases.
fn code(id: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(id).into();
    let (head, _) = digest.split_at(8);
    head.iter()
        .fold(0, |code, byte| code << 8 | u64::from(*byte))
        >> CODE_SHIFT
        << CODE_SHIFT
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use gantry_base::ids::{ApplicationId, OrganizationId, ProjectId, UserId};

    #[test]
    fn name_depends_on_every_part_of_the_key() {
        let hasher = KeyHasher::new([7; 32], &["a", "b"]);
        let identifiers = (0..10_i64).flat_map(|n| {
            let address = Identifier::Address(n.cast_unsigned());
            [
                Identifier::User(UserId(n)),
                Identifier::Session(UserId(n)),
                Identifier::Application(ApplicationId(n)),
                address,
            ]
        });
        let scopes = (0..10).flat_map(|n| {
            [
                CounterScope::Organization(OrganizationId(n)),
                CounterScope::Project(ProjectId(n)),
            ]
        });
        let scopes: Vec<_> = scopes
            .chain([
                CounterScope::User,
                CounterScope::Unresolved,
                CounterScope::LookUps,
            ])
            .collect();
        let keys: Vec<_> = identifiers
            .flat_map(|identifier| scopes.iter().map(move |scope| (identifier, *scope)))
            .flat_map(|(identifier, scope)| {
                (0..4).map(move |operation| CounterKey {
                    identifier,
                    scope,
                    operation,
                })
            })
            .collect();
        let names: HashSet<_> = keys.iter().map(|key| hasher.name(key).hash).collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn name_depends_on_operation_id_and_seed() {
        let key = |operation| CounterKey {
            identifier: Identifier::Address(1),
            scope: CounterScope::User,
            operation,
        };
        let before = KeyHasher::new([7; 32], &["a", "b"]);
        let after = KeyHasher::new([7; 32], &["new", "b", "a"]);
        assert_eq!(before.name(&key(0)).hash, after.name(&key(2)).hash);
        assert_ne!(before.name(&key(0)).hash, after.name(&key(0)).hash);
        assert_ne!(
            before.name(&key(0)).hash,
            KeyHasher::new([8; 32], &["a", "b"]).name(&key(0)).hash
        );
    }

    #[test]
    fn operation_codes_are_unique() {
        let ids: Vec<_> = crate::api::endpoints::all()
            .iter()
            .map(|endpoint| endpoint.id)
            .chain([crate::api::endpoints::UNKNOWN.id])
            .collect();
        let codes: HashSet<_> = ids.iter().map(|id| code(id)).collect();
        assert_eq!(codes.len(), ids.len());
        assert!(
            codes
                .iter()
                .all(|code| *code > u64::from(u16::MAX) << CODE_SHIFT),
            "no code looks like an index"
        );
    }

    /// Names of neighbouring keys are uniformly distributed in all bits that the table uses.
    #[test]
    fn neighbouring_keys_are_distributed_uniformly() {
        let hasher = KeyHasher::new([3; 32], &[]);
        for shift in [0, 28, 56] {
            let mut filled = [0_u32; 256];
            for address in 0..65_536 {
                let name = hasher.name(&CounterKey {
                    identifier: Identifier::Address(address),
                    scope: CounterScope::User,
                    operation: 0,
                });
                filled[usize::from((name.hash >> shift).to_le_bytes()[0])] += 1;
            }
            // 256 are expected, with a standard deviation of 16.
            assert!(filled.iter().all(|n| (160..352).contains(n)), "{filled:?}");
        }
    }
}
