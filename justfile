# Recipes for developers and CI. `just` lists them.

target := env("CARGO_TARGET_DIR", "target")
gantry := target / "debug/gantry"

[private]
default:
    @just --list --unsorted

# Everything CI checks, cheapest first
ci: fmt-check spell features unused deny build generate-check lint test doc instructions

# Start everything on this machine
dev *arguments:
    ./bin/dev {{arguments}}

# Binary and tests. Benches are type-checked by `lint`: linking each would take minutes
build:
    cargo build --workspace --tests --bin gantry

# All tests, with a temporary PostgreSQL. Arguments go to nextest: `just test contract`
test *arguments: build
    {{gantry}} with-postgres -- cargo nextest run --workspace {{arguments}}

# Requests and native code that must be rejected: tests/attacks
attacks: build
    {{gantry}} with-postgres -- cargo nextest run --workspace -E 'test(/^binary::attacks::/) or test(/^walls::/)'

# Random input for one parser for the given seconds; targets are in tests/fuzz
fuzz target seconds="60": build
    GANTRY_FUZZ_SECONDS={{seconds}} cargo test --workspace --test it fuzz::{{target}} -- --nocapture

# Unmodified clients against the built binary
clients: build
    tests/clients/run

# Programs of an operator: `just kits /path/of/services`. Prints how many are missing and were skipped
kits folder=env("GANTRY_SERVICES_DIR", ""): build
    GANTRY_SERVICES_DIR={{folder}} {{gantry}} with-postgres -- cargo nextest run --workspace --no-capture -E 'test(archives_of_the_operator)'

# Log SQL against ClickHouse (its Python package) and written rules: `just logs-differential --seed 7`
logs-differential *arguments:
    tests/logs-differential/run {{arguments}}

# DNS, ACME and TLS in a network namespace. Needs root; prints a message where it cannot run
network: build
    tests/network/run

# Debian package of the release build, with debug symbols apart: target/debian. Takes half an hour
dist:
    cargo build --profile dist --bin gantry
    bin/package {{target}}/dist/gantry {{target}}/debian/

# The Debian package of the debug build, installed, used, upgraded and removed on fresh systems. Needs root
package-test *suites: build
    tests/package/run {{gantry}} {{suites}}

# Formatting
fmt:
    cargo fmt --all

fmt-check:
    cargo fmt --all --check

# Entries of tests/weakenings against the source; clippy, warnings denied
lint:
    tests/weakenings/weaken.py oauth --check
    tests/weakenings/weaken.py services --check
    tests/weakenings/weaken.py walls --check
    cargo clippy --workspace --all-targets -- -D warnings

# Spelling
spell:
    typos

# One set of features for the build and for tests
features:
    bin/check-features

# Dependencies that no code uses
unused:
    cargo machete

# Licences, banned crates, sources
deny:
    cargo deny --log-level error check bans licenses sources

# Rustdoc, warnings denied
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items

# Write the files that are generated from the code
generate: build
    {{gantry}} generate

generate-check: build
    {{gantry}} generate --check

# Check the instruction count of one rate limit decision against the recorded value
instructions:
    bin/count-instructions

# Ratios to baselines: requests to bare hyper and axum, rate limits to other limiters, projects to initdb and to empty ones, branches to both and to cp,
# connections to direct ones, the service proxy to nginx, SQL over HTTP to direct SQL
bench:
    cargo bench --profile requests --bench request
    cargo bench --bench limits
    cargo bench --bench clusters
    cargo bench --bench backups
    cargo bench --bench branches
    cargo bench --bench platform
    cargo bench --bench router
    cargo bench --bench pooler
    cargo bench --bench fleet
    cargo bench --profile requests --bench edge
    cargo bench --profile requests --bench services
    cargo bench --profile requests --bench functions
    cargo bench --bench database
    cargo bench -p gantry-logs --bench ingest
    cargo bench -p gantry-logs --bench query
    GANTRY_BENCH_ROWS=10000000 cargo bench -p gantry-logs --bench object_store

# Shared rate limits: batched against one statement each; and Valkey, if installed
bench-shared-limits:
    cargo bench --bench shared_limits
