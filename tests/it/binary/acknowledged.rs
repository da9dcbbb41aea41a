//! A client that writes all the time, and the rows of which it got an acknowledgement.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use chrono::{DateTime, Utc};
use serde_json::json;

use super::{crash::let_pass, machine::Gantry, wire};

/// Inserted numbers, and when each was acknowledged.
type AcknowledgedRows = Arc<Mutex<Vec<(i64, DateTime<Utc>)>>>;

/// Inserts numbers into the table `ledger` of a project, and notes when each was acknowledged.
pub(super) struct Writer {
    stop: Arc<AtomicBool>,
    noted: AcknowledgedRows,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Creates the table, and begins to write.
    pub(super) fn begin(gantry: &Gantry, project: &str) -> Self {
        gantry
            .query(project, "create table ledger (n bigint)")
            .expect(201);
        let stop = Arc::new(AtomicBool::new(false));
        let noted: AcknowledgedRows = Arc::default();
        let (address, token) = (gantry.address, gantry.token.clone());
        let path = format!("/v1/projects/{project}/database/query");
        let (ends, notes) = (Arc::clone(&stop), Arc::clone(&noted));
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let sql = json!({ "query": format!("insert into ledger values ({number})") });
                let sent = wire::send(address, "POST", &path, Some(&token), Some(&sql));
                match sent {
                    Ok(answer) if answer.status == 201 => {
                        notes.lock().unwrap().push((number, now()));
                    }
                    // Not acknowledged: the number may be there or not, and is not used again.
                    _ => let_pass(50),
                }
            }
        });
        Self {
            stop,
            noted,
            thread,
        }
    }

    /// Ends the writing, and returns the acknowledged rows.
    pub(super) fn end(self) -> Vec<(i64, DateTime<Utc>)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        Arc::into_inner(self.noted).unwrap().into_inner().unwrap()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with times that a server of real time recorded"
)]
pub(super) fn now() -> DateTime<Utc> {
    Utc::now()
}
