//! The names of counters: 64 bits that stand for a key.
//!
//! A table that stores whole keys needs three times the memory and a cache miss more per request, so it stores hashes.
//! Two keys with the same hash would share a counter: both would be refused too early, never too late. How likely is it?
//! The hash is multilinear (Lemire and Kaser, "Strongly universal string hashing is fast"): the top 64 bits of
//! `add + by₁·word₁ + by₂·word₂ + by₃·word₃` modulo 2¹²⁸, with a secret random `add` and `by`. For any two different keys,
//! chosen by whomever does not know the secret, the probability that they collide is exactly 2⁻⁶⁴. With a million
//! counters alive, one among them has a double with probability 2.7·10⁻⁸, and a new key hits one of them with 5·10⁻¹⁴.
//!
//! The hash is our own code and the secret is kept in the snapshot, so names hold across restarts and versions. For the
//! same reason an operation enters by its id and not by its place in today's list.

use sha2::{Digest, Sha256};

use super::super::{Identifier, Key, Scope};

/// The secret of the hash.
pub(in crate::platform::rate_limits) type Seed = [u8; 32];

/// Low bits of an operation's code that are left free for what the rest of the key is.
const CODE_SHIFT: u32 = 16;

/// Turns keys into names.
#[derive(Debug)]
pub(super) struct Namer {
    add: u128,
    by: [u128; 3],
    /// A code for each operation, in the order of [`Key::operation`].
    operations: Box<[u64]>,
    seed: Seed,
}

/// What a key is called in the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Name {
    pub(super) hash: u64,
    /// Code of the operation, whose 16 low bits are zero.
    pub(super) operation: u64,
}

impl Namer {
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
    pub(super) fn name(&self, key: &Key) -> Name {
        // Without an id, an operation is known by its index; the codes of ids are never that small.
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
            Scope::User => (0, 0),
            Scope::Organization(organization) => (2, organization.0.cast_unsigned()),
            Scope::Project(project) => (4, project.0.cast_unsigned()),
            Scope::Unresolved => (6, 0),
            Scope::LookUps => (6, 1),
        };
        let words = [identifier, scope, operation | what | who];
        let sum = words.iter().zip(self.by).fold(self.add, |sum, (word, by)| {
            sum.wrapping_add(by.wrapping_mul(u128::from(*word)))
        });
        Name {
            hash: scatter((sum >> 64) as u64),
            operation,
        }
    }
}

/// Neighbouring keys have evenly spaced sums, and a table wants them anywhere. A bijection (`SplitMix64`'s) makes no two
/// names equal that were not.
#[inline]
fn scatter(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// The code of an operation: 48 bits of its id's digest, above 2³² in all but one case of 65,536.
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
    use crate::base::ids::{ApplicationId, OrganizationId, ProjectId, UserId};

    #[test]
    fn every_part_of_a_key_is_in_its_name() {
        let namer = Namer::new([7; 32], &["a", "b"]);
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
                Scope::Organization(OrganizationId(n)),
                Scope::Project(ProjectId(n)),
            ]
        });
        let scopes: Vec<_> = scopes
            .chain([Scope::User, Scope::Unresolved, Scope::LookUps])
            .collect();
        let keys: Vec<_> = identifiers
            .flat_map(|identifier| scopes.iter().map(move |scope| (identifier, *scope)))
            .flat_map(|(identifier, scope)| {
                (0..4).map(move |operation| Key {
                    identifier,
                    scope,
                    operation,
                })
            })
            .collect();
        let names: HashSet<_> = keys.iter().map(|key| namer.name(key).hash).collect();
        assert_eq!(names.len(), keys.len());
    }

    #[test]
    fn a_name_follows_the_operation_id_and_the_seed() {
        let key = |operation| Key {
            identifier: Identifier::Address(1),
            scope: Scope::User,
            operation,
        };
        let before = Namer::new([7; 32], &["a", "b"]);
        let after = Namer::new([7; 32], &["new", "b", "a"]);
        assert_eq!(before.name(&key(0)).hash, after.name(&key(2)).hash);
        assert_ne!(before.name(&key(0)).hash, after.name(&key(0)).hash);
        assert_ne!(
            before.name(&key(0)).hash,
            Namer::new([8; 32], &["a", "b"]).name(&key(0)).hash
        );
    }

    #[test]
    fn operations_have_codes_of_their_own() {
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

    /// Names of neighbouring keys spread as random ones would, whichever bits the table looks at.
    #[test]
    fn neighbours_scatter() {
        let namer = Namer::new([3; 32], &[]);
        for shift in [0, 28, 56] {
            let mut filled = [0_u32; 256];
            for address in 0..65_536 {
                let name = namer.name(&Key {
                    identifier: Identifier::Address(address),
                    scope: Scope::User,
                    operation: 0,
                });
                filled[usize::from((name.hash >> shift).to_le_bytes()[0])] += 1;
            }
            // 256 expected, 16 standard deviation.
            assert!(filled.iter().all(|n| (160..352).contains(n)), "{filled:?}");
        }
    }
}
