//! The object store client against a server that verifies signatures, pages listings and injects
//! failures.

use std::{sync::mpsc, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future::join_all, stream};
use gantry::platform::object_store::{Place, RequestTimeouts, S3};
use gantry_base::clock::{Clock, Entropy};
use gantry_logs::object_store::{
    Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    path::Path,
};
use tokio::{sync::oneshot, time::timeout};

use crate::support::{
    dawn,
    s3::{Objects, Trouble},
};

/// Maximum number of attempts of a request.
const ATTEMPTS: usize = 5;

pub(super) fn quick() -> RequestTimeouts {
    RequestTimeouts {
        connect: Duration::from_secs(5),
        answer: Duration::from_secs(5),
        pause: Duration::from_micros(500),
    }
}

pub(super) fn client(place: Place) -> S3 {
    S3::new(place, Clock::manual(dawn()), Entropy::seeded(1), quick()).unwrap()
}

fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

fn payload(text: &str) -> PutPayload {
    Bytes::from(text.to_owned()).into()
}

async fn read(s3: &S3, key: &str) -> String {
    String::from_utf8(
        s3.get(&path(key))
            .await
            .unwrap()
            .bytes()
            .await
            .unwrap()
            .to_vec(),
    )
    .unwrap()
}

#[tokio::test]
async fn objects_can_be_written_read_deleted() {
    let objects = Objects::start().await;
    for (prefix, name) in [
        ("", "p/2026-11-21/a.1.parquet"),
        ("some/where", "p/2026-11-21/a.1.parquet"),
        ("x", "ä b+c/(d)=$&'"),
    ] {
        let (s3, at) = (client(objects.place(prefix)), path(name));
        s3.put(&at, payload("0123456789")).await.unwrap();
        let meta = s3.head(&at).await.unwrap();
        assert_eq!(
            (meta.size, meta.last_modified.to_rfc3339(), meta.location),
            (10, "2026-11-21T09:15:03+00:00".into(), at.clone())
        );
        assert_eq!(read(&s3, name).await, "0123456789");
        let listed: Vec<_> = s3
            .list(None)
            .map_ok(|meta| (meta.location, meta.size))
            .try_collect()
            .await
            .unwrap();
        assert_eq!(listed, [(at.clone(), 10)], "{prefix}");
        s3.put(&at, payload("other")).await.unwrap();
        assert_eq!(read(&s3, name).await, "other");
        s3.delete(&at).await.unwrap();
        assert!(
            matches!(s3.get(&at).await, Err(Error::NotFound { path, .. }) if path == at.as_ref())
        );
        assert!(matches!(s3.head(&at).await, Err(Error::NotFound { .. })));
        s3.delete(&at).await.unwrap();
        assert_eq!(objects.keys(), [""; 0]);
    }
}

#[tokio::test]
async fn range_requests_return_parts() {
    let objects = Objects::start().await;
    let (s3, at) = (client(objects.place("x")), path("a"));
    s3.put(&at, payload("0123456789")).await.unwrap();
    for whole in [false, true] {
        for (range, text, part) in [
            (GetRange::Bounded(0..3), "012", 0..3),
            (GetRange::Bounded(8..99), "89", 8..10),
            (GetRange::Offset(7), "789", 7..10),
            (GetRange::Suffix(2), "89", 8..10),
            (GetRange::Suffix(99), "0123456789", 0..10),
        ] {
            objects.plan([whole.then_some(Trouble::Whole)]);
            let found = s3
                .get_opts(&at, GetOptions::new().with_range(Some(range.clone())))
                .await
                .unwrap();
            assert_eq!(
                (found.range.clone(), found.meta.size),
                (part, 10),
                "{range}"
            );
            assert_eq!(found.bytes().await.unwrap(), text, "{range}");
        }
    }
    assert_eq!(
        s3.get_ranges(&at, &[0..1, 4..6]).await.unwrap(),
        ["0", "45"]
    );
    objects.asked();
    #[expect(clippy::reversed_empty_ranges, reason = "is what is refused")]
    for range in [GetRange::Bounded(3..3), GetRange::Bounded(3..2)] {
        assert!(
            s3.get_opts(&at, GetOptions::new().with_range(Some(range)))
                .await
                .is_err()
        );
    }
    assert_eq!(
        objects.asked(),
        [""; 0],
        "nothing is asked that has no answer"
    );
    assert!(s3.get_range(&at, 10..11).await.is_err());
}

#[tokio::test]
async fn listing_is_paged_and_limited_to_prefix() {
    let objects = Objects::start().await;
    let s3 = client(objects.place("ours"));
    let names: Vec<String> = (0..10).map(|n| format!("p/d{}/{n}", n / 4)).collect();
    for name in names.iter().map(String::as_str).chain(["q/1", "r"]) {
        s3.put(&path(name), payload("1")).await.unwrap();
    }
    for theirs in [
        "ours",
        "ours/",
        "ours//x",
        "ours/p//y",
        "ours/p/folder/",
        "ours2/p/z",
        "other",
        "ours/p/d0/./a",
    ] {
        objects.put(theirs);
    }
    let listed = async |prefix: Option<&str>| {
        let prefix = prefix.map(path);
        s3.list(prefix.as_ref())
            .map_ok(|meta| meta.location.to_string())
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
    };
    objects.asked();
    assert_eq!(listed(Some("p")).await, names);
    assert_eq!(objects.asked().len(), 5, "13 under it, by three");
    assert_eq!(
        listed(None).await,
        [&names[..], &["q/1".into(), "r".into()]].concat()
    );
    assert_eq!(listed(Some("p/d1")).await, names[4..8]);
    assert_eq!(
        (listed(Some("p/d")).await, listed(Some("nothing")).await),
        (vec![], vec![])
    );
    let behind: Vec<_> = s3
        .list_with_offset(None, &path(&names[6]))
        .map_ok(|meta| meta.location.to_string())
        .try_collect()
        .await
        .unwrap();
    assert_eq!(behind, [&names[7..], &["q/1".into(), "r".into()]].concat());
    let top = s3.list_with_delimiter(None).await.unwrap();
    assert_eq!(
        (top.common_prefixes, top.objects.len()),
        (vec![path("p"), path("q")], 1)
    );
    let days = s3.list_with_delimiter(Some(&path("p"))).await.unwrap();
    assert_eq!(
        days.common_prefixes,
        ["p/d0", "p/d1", "p/d2", "p/folder"].map(path)
    );
    let all = s3
        .list(Some(&path("p")))
        .map_ok(|meta| meta.location)
        .boxed();
    assert_eq!(
        s3.delete_stream(all)
            .try_collect::<Vec<_>>()
            .await
            .unwrap()
            .len(),
        10
    );
    assert_eq!(listed(None).await, ["q/1", "r"]);
}

#[tokio::test]
async fn temporary_failures_are_retried() {
    let objects = Objects::start().await;
    let (s3, at) = (client(objects.place("x")), path("a"));
    let passing = [
        Trouble::Dropped,
        Trouble::Lost,
        Trouble::Refused(503, "SlowDown", None),
        Trouble::Refused(500, "InternalError", None),
    ];
    for trouble in passing.into_iter().chain([
        Trouble::Refused(429, "", None),
        Trouble::Refused(400, "RequestTimeout", None),
    ]) {
        let once = || objects.plan([Some(trouble)]);
        objects.asked();
        once();
        s3.put(&at, payload("0123456789")).await.unwrap();
        once();
        assert_eq!(read(&s3, "a").await, "0123456789");
        once();
        assert_eq!(s3.list(None).count().await, 1);
        once();
        s3.delete(&at).await.unwrap();
        assert_eq!(objects.asked().len(), 8, "{trouble:?}: each twice");
        assert_eq!(objects.keys(), [""; 0], "{trouble:?}");
    }
    s3.put(&at, payload("0123456789")).await.unwrap();
    objects.plan([Some(Trouble::Cut), Some(Trouble::Cut)]);
    assert_eq!(
        read(&s3, "a").await,
        "0123456789",
        "half of an answer is none"
    );

    objects.asked();
    objects.plan([Some(Trouble::Dropped); ATTEMPTS]);
    let away = s3.get(&at).await.unwrap_err().to_string();
    assert!(
        away.contains("does not answer") && away.contains("127.0.0.1"),
        "{away}"
    );
    assert_eq!(objects.asked().len(), ATTEMPTS);
    objects.plan([Some(Trouble::Flood); ATTEMPTS]);
    assert!(
        s3.list(None).try_collect::<Vec<_>>().await.is_err(),
        "longer than any page"
    );
    objects.asked();
    for status in [400, 403, 404, 405, 412, 501] {
        objects.plan([Some(Trouble::Refused(status, "No", None))]);
        assert!(s3.put(&at, payload("1")).await.is_err(), "{status}");
    }
    assert_eq!(objects.asked().len(), 6);
}

#[tokio::test]
async fn silent_store_times_out() {
    let objects = Objects::start().await;
    let patience = RequestTimeouts {
        answer: Duration::from_millis(50),
        ..quick()
    };
    let s3 = S3::new(
        objects.place("x"),
        Clock::manual(dawn()),
        Entropy::seeded(1),
        patience,
    )
    .unwrap();
    objects.plan([Some(Trouble::Silent), Some(Trouble::Silent)]);
    s3.put(&path("a"), payload("1")).await.unwrap();
    objects.plan([Some(Trouble::Silent); ATTEMPTS]);
    let late = s3.get(&path("a")).await.unwrap_err().to_string();
    assert!(late.contains("no answer within 50ms"), "{late}");
}

#[tokio::test]
async fn wrong_key_is_rejected_and_not_logged() {
    let objects = Objects::start().await;
    let right = objects.place("x");
    let mut wrong_id = right.clone();
    wrong_id.credentials.access_key_id = "OTHER".into();
    let mut wrong_secret = right.clone();
    wrong_secret.credentials.secret_access_key = "hush".into();
    let mut wrong_token = right.clone();
    wrong_token.credentials.session_token = Some("hush".into());
    let mut wrong_bucket = right.clone();
    wrong_bucket.bucket = "nothing".into();
    for (place, says) in [
        (wrong_id, "knows no access key OTHER"),
        (wrong_secret, "--logs-s3-secret-access-key"),
        (wrong_token, "session token"),
        (wrong_bucket, "has no bucket nothing: make it"),
    ] {
        let s3 = client(place);
        let why = s3.put(&path("a"), payload("1")).await.unwrap_err();
        let (shown, probed) = (
            format!("{why} {why:?} {s3:?} {s3}"),
            s3.probe("n").await.unwrap_err().to_string(),
        );
        assert!(probed.contains(says) && shown.contains('x'), "{probed}");
        assert!(
            !shown.contains("hush") && !shown.contains("correct/horse"),
            "{shown}"
        );
    }
    assert_eq!(objects.keys(), [""; 0]);
    objects.plan([Some(Trouble::Refused(
        301,
        "PermanentRedirect",
        Some("eu-west-3"),
    ))]);
    let elsewhere = client(right)
        .put(&path("a"), payload("1"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        elsewhere.contains("bucket lines is in region eu-west-3: give --logs-s3-region eu-west-3"),
        "{elsewhere}"
    );
}

#[tokio::test]
async fn store_check_leaves_no_objects() {
    let objects = Objects::start().await;
    let s3 = client(objects.place("x"));
    s3.probe("node-0").await.unwrap();
    let asked = objects.asked();
    assert_eq!(asked.len(), 4, "listed, written, read, removed: {asked:?}");
    assert_eq!(objects.keys(), [""; 0]);
    objects.refuse_writes();
    let why = s3.probe("node-0").await.unwrap_err();
    assert!(
        !why.passes()
            && why
                .to_string()
                .contains("may not write x/probe-node-0 in bucket lines"),
        "{why}"
    );
    objects.away(true);
    assert!(s3.probe("node-0").await.unwrap_err().passes());
}

#[tokio::test]
async fn unsupported_operations_are_rejected() {
    let objects = Objects::start().await;
    let (s3, at) = (client(objects.place("x")), path("a"));
    let refused = |error: Error| assert!(matches!(error, Error::NotImplemented { .. }), "{error}");
    refused(
        s3.put_opts(&at, payload("1"), PutOptions::from(PutMode::Create))
            .await
            .unwrap_err(),
    );
    refused(s3.put_multipart(&at).await.err().unwrap());
    refused(s3.copy(&at, &at).await.unwrap_err());
    let options = GetOptions {
        if_none_match: Some("x".into()),
        ..GetOptions::default()
    };
    refused(s3.get_opts(&at, options).await.unwrap_err());
    assert_eq!(objects.asked(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_limited() {
    let objects = Objects::start().await;
    let (s3, at) = (client(objects.place("x")), path("a"));
    s3.put(&at, payload("1")).await.unwrap();
    let all = join_all((0..200).map(|_| s3.get(&at))).await;
    assert!(all.iter().all(Result::is_ok));
    assert!((2..=32).contains(&objects.most()), "{}", objects.most());
    let removed =
        s3.delete_stream(stream::iter((0..200).map(|n| Ok(path(&n.to_string())))).boxed());
    assert_eq!(removed.try_collect::<Vec<_>>().await.unwrap().len(), 200);
}

/// Query threads are blocked while they compute; requests of other callers must not wait for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_run_independently_of_caller_threads() {
    let objects = Objects::start().await;
    client(objects.place("x"))
        .put(&path("a"), payload("1"))
        .await
        .unwrap();
    let s3 = client(objects.place("x"));
    let others = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (store, (release, held), (tell, busy)) =
        (s3.clone(), mpsc::channel::<()>(), oneshot::channel());
    others.spawn(async move {
        tell.send(read(&store, "a").await).unwrap();
        // The thread is busy as long as the query computes.
        held.recv().unwrap_err();
    });
    assert_eq!(busy.await.unwrap(), "1");
    let other = timeout(quick().answer / 2, read(&s3, "a")).await;
    drop(release);
    others.shutdown_background();
    assert_eq!(other.unwrap(), "1");
}
