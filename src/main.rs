//! The `gantry` binary.

use std::process::ExitCode;

/// A request allocates about a dozen short-lived blocks, some over a kilobyte, which the allocator
/// of the C library handles slowly (`docs/decisions/0077-performance-budget.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gantry::cli::main()
}
