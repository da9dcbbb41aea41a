//! Verification of an exported log.

use std::io::{self, BufRead, Read};

use super::{AuditEntry, Hash};

/// Longest line that is read, in bytes.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// Result of a verification without errors.
#[derive(Debug, PartialEq, Eq)]
pub struct Verified {
    /// Chain of the entries.
    pub chain: String,
    /// Numbers of the first and the last entry.
    pub numbers: (i64, i64),
    /// Hash of the last entry. Compared with a hash that was noted earlier, it shows whether later
    /// entries were cut off.
    pub head: Hash,
}

/// Error of a verification: the first entry that does not follow from the previous one.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The file cannot be read.
    #[error("the log could not be read: {0}")]
    Unreadable(#[from] io::Error),
    /// The file has no entries.
    #[error("there are no entries")]
    Empty,
    /// A line is not an entry.
    #[error("line {line} is not an entry: {problem}")]
    Malformed {
        /// Line number, from 1.
        line: usize,
        /// Error of the JSON parser.
        problem: String,
    },
    /// An entry is invalid.
    #[error("line {line}, entry {number}: {problem}")]
    Bad {
        /// Line number, from 1.
        line: usize,
        /// Number of the entry.
        number: i64,
        /// Description of the problem.
        problem: &'static str,
    },
}

/// Verifies a log and reports the first invalid entry. A log that does not begin with entry 1 is
/// verified as a part of a log.
pub fn verify(mut log: impl BufRead) -> Result<Verified, VerifyError> {
    let mut last: Option<AuditEntry> = None;
    let mut first = None;
    let mut line = 0;
    loop {
        let mut text = Vec::new();
        line += 1;
        if log
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut text)?
            == 0
        {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let entry: AuditEntry =
            serde_json::from_slice(&text).map_err(|error| VerifyError::Malformed {
                line,
                problem: error.to_string(),
            })?;
        if let Some(problem) = problem(last.as_ref(), &entry) {
            return Err(VerifyError::Bad {
                line,
                number: entry.number,
                problem,
            });
        }
        first.get_or_insert(entry.number);
        last = Some(entry);
    }
    let (Some(last), Some(first)) = (last, first) else {
        return Err(VerifyError::Empty);
    };
    Ok(Verified {
        chain: last.chain,
        numbers: (first, last.number),
        head: last.hash,
    })
}

fn problem(last: Option<&AuditEntry>, entry: &AuditEntry) -> Option<&'static str> {
    if entry.hash != entry.expected_hash() {
        return Some("its content does not match its hash");
    }
    match last {
        Some(last) if last.chain != entry.chain => Some("it belongs to another log"),
        Some(last) if last.number + 1 != entry.number => {
            Some("entries before it are missing, or out of order")
        }
        Some(last) if last.hash != entry.previous => {
            Some("its previous hash does not match the entry before")
        }
        None if entry.number == 1 && entry.previous != Hash::NONE => {
            Some("entry 1 has a previous entry")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    use super::*;

    fn log(length: i64) -> Vec<AuditEntry> {
        let (mut entries, mut previous) = (Vec::new(), Hash::NONE);
        for number in 1..=length {
            let mut entry = AuditEntry {
                chain: "organization 1".to_owned(),
                number,
                at: "2026-11-21T09:15:03.000001Z".parse().unwrap(),
                actor: uuid::Uuid::from_u128(7),
                token: 3,
                address: "192.0.2.1".to_owned(),
                request_id: format!("r{number}"),
                operation: "v1-update-a-project".to_owned(),
                subject: (number % 2 == 0).then(|| "home".to_owned()),
                status: 200,
                before: None,
                after: Some(RawValue::from_string(r#"{"name":"é"}"#.to_owned()).unwrap()),
                client: None,
                previous,
                hash: Hash::NONE,
            };
            entry.hash = entry.expected_hash();
            previous = entry.hash;
            entries.push(entry);
        }
        entries
    }

    fn text(entries: &[AuditEntry]) -> String {
        entries
            .iter()
            .map(|entry| serde_json::to_string(entry).unwrap() + "\n")
            .collect()
    }

    fn checked(text: &str) -> Result<Verified, String> {
        verify(text.as_bytes()).map_err(|error| error.to_string())
    }

    /// The hash was computed with another program from the description of the encoding.
    #[test]
    fn encoding_matches_its_description() {
        assert_eq!(
            log(1)[0].hash.to_string(),
            "f9ec09783ac44b3104b8eff623a137c2be5c9bc68313a6ad24d2c3376ed24692"
        );
    }

    #[test]
    fn complete_and_partial_logs_verify() {
        let entries = log(5);
        assert_eq!(checked(&text(&entries)).unwrap().numbers, (1, 5));
        let part = checked(&text(&entries[2..])).unwrap();
        assert_eq!((part.numbers, part.head), ((3, 5), entries[4].hash));
        assert_eq!(checked("\n"), Err("there are no entries".to_owned()));
        assert!(
            checked("nonsense")
                .unwrap_err()
                .starts_with("line 1 is not an entry")
        );
    }

    #[test]
    fn client_is_part_of_the_hash_of_entries_that_have_one() {
        let mut entries = log(2);
        let without = text(&entries);
        assert!(!without.contains("client"), "{without}");
        entries[1].client = Some("claude-code/2.1".to_owned());
        entries[1].hash = entries[1].expected_hash();
        let with = text(&entries);
        assert_eq!(checked(&with).unwrap().head, entries[1].hash);
        let altered = "line 2, entry 2: its content does not match its hash";
        for changed in [
            with.replace("claude-code/2.1", "claude-code/2.0"),
            with.replace(r#""client":"claude-code/2.1","#, ""),
        ] {
            assert_eq!(checked(&changed).unwrap_err(), altered);
        }
    }

    #[test]
    fn first_invalid_entry_is_reported() {
        let with = |change: fn(&mut Vec<AuditEntry>)| {
            let mut entries = log(5);
            change(&mut entries);
            checked(&text(&entries)).unwrap_err()
        };
        assert_eq!(
            with(|log| log[2].status = 403),
            "line 3, entry 3: its content does not match its hash"
        );
        assert_eq!(
            with(|log| log[3].subject = Some(String::new())),
            "line 4, entry 4: its content does not match its hash"
        );
        assert_eq!(
            with(|log| drop(log.remove(1))),
            "line 2, entry 3: entries before it are missing, or out of order"
        );
        assert_eq!(
            with(|log| log.swap(1, 2)),
            "line 2, entry 3: entries before it are missing, or out of order"
        );
        let forged = |log: &mut Vec<AuditEntry>| {
            log[2].actor = uuid::Uuid::nil();
            log[2].hash = log[2].expected_hash();
        };
        assert_eq!(
            with(forged),
            "line 4, entry 4: its previous hash does not match the entry before"
        );
        let of_another = |log: &mut Vec<AuditEntry>| {
            log[1].chain = "organization 2".to_owned();
            log[1].hash = log[1].expected_hash();
        };
        assert_eq!(
            with(of_another),
            "line 2, entry 2: it belongs to another log"
        );
    }

    proptest! {
        /// A change of a single character is detected, unless the line parses to an equal entry.
        #[test]
        fn changes_are_detected(at in 0_usize..2000, with in proptest::char::range('!', '~')) {
            let whole = text(&log(4));
            let at = at % whole.len();
            prop_assume!(whole.is_char_boundary(at) && whole.is_char_boundary(at + 1) && whole.as_bytes()[at] != b'\n');
            let mut changed = whole.clone();
            changed.replace_range(at..=at, &with.to_string());
            let same = |a: &str, b: &str| {
                let read = |text: &str| text.lines().map(|line| serde_json::from_str::<AuditEntry>(line).map(|entry| (entry.hash, entry.expected_hash()))).collect::<Result<Vec<_>, _>>();
                matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
            };
            prop_assert!(checked(&changed).is_err() || same(&whole, &changed), "{changed}");
        }
    }
}
