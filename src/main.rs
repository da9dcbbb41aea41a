//! The binary: parse, dispatch, exit code.

use std::process::ExitCode;

/// A request makes a dozen short-lived pieces of memory, a few of them over a kilobyte, which the C library's allocator
/// is slow with (`docs/decisions/0077-performance-budget.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    gantry::cli::main()
}
