//! Events over `kill -9` between a change and its answer.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    thread,
};

use serde_json::json;

use super::{
    crash::{let_pass, rows},
    machine::{Machine, PASSWORD},
};

/// Delays after a request was sent, in milliseconds.
const MOMENTS_MS: [u64; 10] = [0, 2, 4, 6, 8, 11, 14, 18, 25, 40];

/// Each project has its event, and each event its project, at any moment of the kill.
#[test]
fn kill_between_change_and_answer_leaves_both_or_neither() {
    let machine = Machine::new();
    let mut gantry = machine.dev(&[]);
    let mut answered = 0;
    for (n, moment) in MOMENTS_MS.into_iter().enumerate() {
        let body = json!({
            "organization_slug": gantry.organization,
            "name": format!("cut {n}"),
            "db_pass": PASSWORD,
        })
        .to_string();
        let request = format!(
            "POST /v1/projects HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            gantry.token,
            body.len()
        );
        let mut connection = TcpStream::connect(gantry.address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let _ = connection.shutdown(Shutdown::Write);
        let sent = thread::spawn(move || {
            use std::io::Read;
            let mut answer = Vec::new();
            let _ = connection.read_to_end(&mut answer);
            answer.starts_with(b"HTTP/1.1 201")
        });
        let_pass(moment);
        gantry.kill();
        answered += usize::from(sent.join().unwrap());
        gantry = machine.dev(&[]);
    }
    let sql = "select p.ref, count(e.number) from projects p
               left join events e on e.project_ref = p.ref and e.type = 'v1.project.created'
               group by p.ref having count(e.number) <> 1";
    let without = rows(&machine, "control", "gantry", sql);
    let without: Vec<String> = without.iter().map(|row| row.get(0)).collect();
    assert_eq!(without, [] as [String; 0]);
    let sql =
        "select count(*), count(p.id) from events e left join projects p on p.ref = e.project_ref
               where e.type = 'v1.project.created'";
    let counts = &rows(&machine, "control", "gantry", sql)[0];
    let (events, of_projects): (i64, i64) = (counts.get(0), counts.get(1));
    assert_eq!(events, of_projects);
    assert!(
        events >= i64::try_from(answered).unwrap(),
        "{events} of {answered}"
    );
    let sql = "select number from events order by number";
    let numbers = rows(&machine, "control", "gantry", sql);
    let numbers: Vec<i64> = numbers.iter().map(|row| row.get(0)).collect();
    let expected: Vec<i64> = (1..=i64::try_from(numbers.len()).unwrap()).collect();
    assert_eq!(numbers, expected);
}
