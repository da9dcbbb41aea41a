//! The binary: parse, dispatch, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    gantry::cli::main()
}
