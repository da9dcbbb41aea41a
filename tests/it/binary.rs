//! The executable as a person runs it: started, killed, asked for help, refused.
//!
//! Everything here goes through the process's own doors: arguments, signals, standard streams, HTTP and files.

mod admin;
mod attacks;
mod copies;
mod crash;
mod dev;
mod help;
mod lease;
mod machine;
mod operator;
mod orders;
mod outage;
mod private;
mod quota;
mod refusals;
mod secrets;
mod serve;
mod shut_out;
mod wire;
