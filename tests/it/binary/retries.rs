//! A request with an `Idempotency-Key` that is sent again after `kill -9`.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::json;

use super::{
    crash::let_pass,
    machine::{Gantry, Machine},
    wire::Answer,
};

/// Times between request and kill, in milliseconds: before, during and after the change.
const MOMENTS_MS: [u64; 7] = [0, 1, 2, 5, 10, 30, 100];

/// Sends a request that creates a token, and returns the connection without reading from it.
fn begin(gantry: &Gantry, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gantry.address).unwrap();
    let body = json!({"name": name, "permissions": ["database_read"],
        "organization_slugs": [gantry.organization]})
    .to_string();
    let head = format!(
        "POST /v1/tokens HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nidempotency-key: {name}\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        gantry.token,
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

fn finish(mut stream: TcpStream) -> Answer {
    let mut raw = String::new();
    stream.read_to_string(&mut raw).unwrap();
    Answer::parse(&raw)
}

#[test]
fn request_is_carried_out_once_and_answered_after_a_kill() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    for moment in MOMENTS_MS {
        let name = format!("cut after {moment} ms");
        let lost = begin(&gantry, &name);
        let_pass(moment);
        gantry.kill();
        drop(lost);
        gantry = machine.dev(&[]);
        let first = finish(begin(&gantry, &name));
        let token = first.expect(201);
        let again = finish(begin(&gantry, &name));
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert_eq!((again.status, &again.text), (201, &first.text));
        let listed = gantry.get("/v1/tokens").expect(200);
        let listed = listed.as_array().unwrap().iter();
        let made: Vec<_> = listed.filter(|one| one["name"] == name.as_str()).collect();
        assert_eq!(made.len(), 1, "after {moment} ms");
        assert_eq!(made[0]["id"], token["id"], "after {moment} ms");
    }
    gantry.kill();
}
