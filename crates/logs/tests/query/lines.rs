//! Test data.

use gantry_logs::event::{Attributes, Event, Source};
use serde_json::{Value as Json, json};

use super::{DAY, HOUR};

fn line(id: &str, at: i64, source: Source, message: &str, body: &Json) -> Event {
    Event::new(
        id.into(),
        DAY + at,
        source,
        message.into(),
        Attributes::of_json(body.as_object().unwrap()),
    )
}

fn pick<T: Copy>(all: &[T], at: i64) -> T {
    all[usize::try_from(at).unwrap()]
}

/// A day of one project: 480 requests, 96 database lines, 60 authentication lines, ten storage
/// lines, and two lines outside of the day.
pub(crate) fn own_project() -> Vec<Event> {
    let mut lines = Vec::new();
    lines.extend((0..480).map(request_line));
    lines.extend((0..96).map(database_line));
    lines.extend((0..60).map(authentication_line));
    lines.extend((0..10).map(storage_line));
    let nothing = json!({});
    lines.push(line("before", 0, Source::Edge, "outside", &nothing));
    lines.push(line(
        "after",
        24 * HOUR + 1,
        Source::Edge,
        "outside",
        &nothing,
    ));
    lines
}

fn request_line(n: i64) -> Event {
    const PATHS: [&str; 5] = [
        "/rest/v1/todos",
        "/auth/v1/token",
        "/storage/v1/object/a.png",
        "/rest/v1/rpc/f",
        "/realtime/v1",
    ];
    let path = pick(&PATHS, n * 7 % 11 % 5);
    let status = pick(&[200, 201, 404, 500, 200, 403, 200], n % 7);
    let method = pick(&["GET", "POST", "GET", "PATCH"], n % 4);
    let cache_status = if n % 5 == 0 { "HIT" } else { "MISS" };
    let mut body = json!({
        "identifier": "mine",
        "metadata": {
            "request": {
                "method": method,
                "path": path,
                "headers": {
                    "x_real_ip": format!("203.0.113.{}", n % 13),
                    "host": "mine.example",
                    "user_agent": "it's \"a\" client",
                },
                "cf": {
                    "country": pick(&["DE", "FR", ""], n % 3),
                    "asn": 64500 + n % 5,
                    "colo": "FRA",
                },
            },
            "response": {
                "status_code": status,
                "origin_time": n * 5,
                "headers": { "cf_cache_status": cache_status },
            },
        },
    });
    if n == 33 {
        body["metadata"]["response"]["origin_time"] = json!("none");
    }
    line(
        &format!("edge-{n:04}"),
        n * HOUR / 20 + 1,
        Source::Edge,
        &format!("{method} | {status} | {path}"),
        &body,
    )
}

fn database_line(n: i64) -> Event {
    let application = if n % 12 == 0 { "pg_cron" } else { "psql" };
    let body = json!({ "metadata": { "host": "db", "parsed": {
        "error_severity": pick(&["LOG", "ERROR", "WARNING", "FATAL"], n % 4),
        "user_name": pick(&["postgres", "anon", "authenticator"], n % 3),
        "application_name": application,
        "process_id": 100 + n,
        "session_line_num": n,
    } } });
    let message = if n % 16 == 5 {
        "cron job 7 starting".to_owned()
    } else {
        format!("statement {n} of \"t\"")
    };
    line(
        &format!("db-{n:04}"),
        n * HOUR / 4 + 500,
        Source::Postgres,
        &message,
        &body,
    )
}

fn authentication_line(n: i64) -> Event {
    let mut body = json!({ "metadata": {
        "level": pick(&["info", "error", "fatal"], n % 3),
        "status": pick(&[200, 400, 500], n % 3),
        "path": "/token",
        "msg": format!("login {n}"),
        "auth_event": { "action": "login", "traits": { "provider": "email" } },
    } });
    if n % 3 == 1 {
        body["metadata"]["error"] = json!("invalid password");
    }
    if n % 10 == 9 {
        body["metadata"].as_object_mut().unwrap().remove("status");
    }
    let message = if n % 2 == 0 {
        format!(r#"{{"level":"info","n":{n}}}"#)
    } else {
        "no JSON".to_owned()
    };
    line(
        &format!("auth-{n:04}"),
        n * HOUR / 3 + 900,
        Source::Auth,
        &message,
        &body,
    )
}

fn storage_line(n: i64) -> Event {
    let body = json!({ "metadata": {
        "responseTime": 1.5 * f64::from(i32::try_from(n).unwrap()),
        "req": { "method": "GET", "url": "/object/a" },
        "res": { "statusCode": 200 },
    } });
    line(
        &format!("storage-{n}"),
        n * HOUR + 77,
        Source::Storage,
        "a file",
        &body,
    )
}

/// The lines of another project.
pub(crate) fn other_project() -> Vec<Event> {
    vec![line(
        "secret",
        5,
        Source::Edge,
        "secret of another project",
        &json!({ "metadata": { "request": { "path": "/secret" } } }),
    )]
}
