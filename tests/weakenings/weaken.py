#!/usr/bin/env python3
"""Removes one check from the source at a time and expects a test to fail.

    tests/weakenings/weaken.py oauth                  # all entries of oauth.py; hours, a build each
    tests/weakenings/weaken.py walls NAME NAME        # two entries of walls.py
    tests/weakenings/weaken.py walls --together       # all entries in one build
    tests/weakenings/weaken.py walls --check          # compares all entries with the source

Each entry (a weakening) names the test that must fail. If the test passes, the exit code is 1: the
protection has no test. With --together a test may fail because of another weakening.

The source must be committed before, and is restored at the end.
"""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Time limit of one test.
TEST_SECS_MAX = 300


def without_space(text):
    return "".join(text.split())


def find(text, wanted):
    """Returns start and end of the first occurrence, or None. Ignores white space."""
    positions = [index for index, character in enumerate(text) if not character.isspace()]
    at = without_space(text).find(without_space(wanted))
    if at < 0:
        return None
    return positions[at], positions[at + len(without_space(wanted)) - 1] + 1


def apply(weakening):
    _, file, before, after, _ = weakening
    path = ROOT / file
    text = path.read_text()
    found = find(text, before)
    if found is None:
        sys.exit(f"{weakening[0]}: {file} does not contain {before!r}; update the entry")
    start, end = found
    path.write_text(text[:start] + after + text[end:])


def problem(weakening, tests):
    """Returns why an entry does not match the source, or None."""
    name, file, before, _, test = weakening
    path = ROOT / file
    if not path.exists():
        return f"{name}: {file} does not exist"
    count = without_space(path.read_text()).count(without_space(before))
    if count != 1:
        return f"{name}: {file} contains {before!r} {count} times, expected once"
    if f"fn {test}(" not in tests:
        return f"{name}: test {test} does not exist"
    return None


def check(weakenings):
    """Prints the entries that do not match the source. Returns the exit code."""
    folders = [ROOT / "src", ROOT / "crates", ROOT / "tests"]
    tests = "".join(path.read_text() for folder in folders for path in folder.rglob("*.rs"))
    problems = [found for found in (problem(weakening, tests) for weakening in weakenings) if found]
    print("\n".join(problems) or f"all {len(weakenings)} weakenings match the source")
    return 1 if problems else 0


def restore():
    subprocess.run(["git", "checkout", "--quiet", "--", "src", "crates"], cwd=ROOT, check=True)


def failed(test):
    """Returns whether the test fails. Exits if the weakened source does not compile."""
    # Builds only the unit tests or only the integration tests.
    folders = [ROOT / "src", ROOT / "crates"]
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.rs")]
    is_unit = any(f"fn {test}(" in text for text in sources)
    target = ["--workspace", "--lib"] if is_unit else ["--test", "it"]
    build = ["cargo", "test", "--no-run", *target]
    build = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    if build.returncode != 0:
        sys.exit(f"does not compile:\n{build.stderr[-4000:]}")
    # The unweakened binary starts the PostgreSQL of the tests.
    run = ["cargo", "test", *target, "--", test]
    # Without the check, a test that waits for a rejection may never end.
    limit = ["timeout", "--signal=INT", str(TEST_SECS_MAX)]
    command = [*limit, GANTRY, "with-postgres", "--", *run]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 124:
        return True
    if f"::{test} ... " not in done.stdout:
        sys.exit(f"test {test} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def survivors(chosen, together):
    """Applies the weakenings and yields those whose test passes."""
    for weakening in chosen if together else []:
        apply(weakening)
    for weakening in chosen:
        if not together:
            apply(weakening)
        caught = failed(weakening[4])
        print(f"{'caught  ' if caught else 'SURVIVED'} {weakening[0]}: {weakening[4]}", flush=True)
        if not caught:
            yield weakening
        if not together:
            restore()


if len(sys.argv) < 2 or not (pathlib.Path(__file__).parent / f"{sys.argv[1]}.py").exists():
    sys.exit("name a list: oauth, services or walls")
# Keeps the source folder free of compiled lists.
sys.dont_write_bytecode = True
WEAKENINGS = importlib.import_module(sys.argv[1]).WEAKENINGS
if "--check" in sys.argv:
    sys.exit(check(WEAKENINGS))
if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src", "crates"], cwd=ROOT).returncode != 0:
    sys.exit("src/ has uncommitted changes, which would be lost; commit them first")
# Building the integration tests also builds the server, with the same features of dependencies.
build = ["cargo", "test", "--quiet", "--no-run", "--test", "it"]
subprocess.run(build, cwd=ROOT, check=True)
query = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
metadata = subprocess.run(query, cwd=ROOT, check=True, capture_output=True, text=True)

built = pathlib.Path(json.loads(metadata.stdout)["target_directory"], "debug", "gantry")
GANTRY = built.with_name("gantry-before-weakening")
shutil.copy(built, GANTRY)
names = [name for name in sys.argv[2:] if name != "--together"]
unknown = set(names) - {weakening[0] for weakening in WEAKENINGS}
if unknown:
    sys.exit(f"unknown weakening: {', '.join(sorted(unknown))}; the names are in {sys.argv[1]}.py")
chosen = [weakening for weakening in WEAKENINGS if not names or weakening[0] in names]
try:
    left = list(survivors(chosen, "--together" in sys.argv))
finally:
    restore()
print(f"{len(chosen) - len(left)} of {len(chosen)} caught")
sys.exit(1 if left else 0)
