//! Tests of the executable: arguments, signals, standard streams, HTTP and files.

mod acknowledged;
mod admin;
mod admin_errors;
mod attacks;
mod copies;
mod crash;
mod crash_kept;
mod damaged_logs;
mod dev;
mod drains;
mod help;
mod installation;
mod lease;
mod machine;
mod operator;
mod orders;
mod outage;
mod private;
mod quota;
mod recovery;
mod refusals;
mod secrets;
mod serve;
mod services;
mod shut_out;
mod wire;
