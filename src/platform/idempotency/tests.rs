//! Tests of the rules of keys.

use http::HeaderValue;
use proptest::prelude::*;

use super::*;

const KINDS: [Idempotency; 3] = [
    Idempotency::Recorded,
    Idempotency::Announced,
    Idempotency::Repeatable,
];
const STEPS: [KeyStage; 3] = [KeyStage::Begun, KeyStage::Changed, KeyStage::Answered];

fn at(secs: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000 + secs, 0).unwrap()
}

fn record(step: KeyStage, kept: bool, digest: u8) -> KeyRecord {
    KeyRecord {
        digest: [digest; 32],
        request_id: "r1".to_owned(),
        attempt: Uuid::nil(),
        step,
        answer: kept.then(Vec::new),
        at: at(0),
    }
}

#[test]
fn keys_have_1_to_255_printable_characters_in_one_field() {
    let read = |values: &[&[u8]]| {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(IDEMPOTENCY_KEY, HeaderValue::from_bytes(value).unwrap());
        }
        read_key(&headers).map_err(|error| error.to_string())
    };
    let longest = "k".repeat(255);
    assert_eq!(read(&[]), Ok(None));
    assert_eq!(read(&[b"\"8e03 ~\""]), Ok(Some("\"8e03 ~\"".to_owned())));
    assert_eq!(read(&[longest.as_bytes()]), Ok(Some(longest.clone())));
    let too_long = "k".repeat(256);
    for values in [
        &[&b""[..]][..],
        &[too_long.as_bytes()],
        &[b"a\tb"],
        &["é".as_bytes()],
        &[b"a", b"a"],
    ] {
        let problem = read(values).unwrap_err();
        assert!(
            problem.starts_with("Idempotency-Key: expected "),
            "{problem}"
        );
    }
}

#[test]
fn interrupted_requests_get_a_truthful_answer() {
    let after = |kind, step, secs| decide(kind, Some(&record(step, false, 1)), &[1; 32], at(secs));
    let running = Decision::Refuse(KeyProblem::Running { retry: RETRY });
    let unknown = Decision::Refuse(KeyProblem::OutcomeUnknown("r1".to_owned()));
    let not_kept = Decision::Refuse(KeyProblem::AnswerNotKept("r1".to_owned()));
    for kind in KINDS {
        assert_eq!(after(kind, KeyStage::Begun, 129), running);
        assert_eq!(after(kind, KeyStage::Changed, 129), running);
        assert_eq!(after(kind, KeyStage::Changed, 130), not_kept);
        assert_eq!(after(kind, KeyStage::Answered, 0), not_kept);
    }
    assert_eq!(after(Idempotency::Announced, KeyStage::Begun, 130), unknown);
    assert_eq!(
        after(Idempotency::Repeatable, KeyStage::Begun, 130),
        Decision::Run
    );
}

proptest! {
    /// A recorded request runs again only if it was announced, has ended and is repeatable; another
    /// request with its key never runs, and never gets its answer.
    #[test]
    fn changes_are_made_once(
        kind in prop::sample::select(&KINDS[..]), step in prop::sample::select(&STEPS[..]),
        kept: bool, same: bool, secs in 0_i64..86_400,
    ) {
        let first = record(step, kept, 1);
        let digest = if same { [1; 32] } else { [2; 32] };
        let decision = decide(kind, Some(&first), &digest, at(secs));
        let has_ended = secs >= 130;
        let is_repeatable = step == KeyStage::Begun && kind == Idempotency::Repeatable;
        let runs = same && is_repeatable && has_ended;
        prop_assert_eq!(decision == Decision::Run, runs);
        let replays = same && step == KeyStage::Answered && kept;
        prop_assert_eq!(decision == Decision::Replay, replays);
        let refused = decision == Decision::Refuse(KeyProblem::OtherRequest);
        prop_assert_eq!(refused, !same);
    }
}
