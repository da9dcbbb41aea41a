#!/usr/bin/env python3
"""Removes one guard after another and expects a test to fail each time.

    tests/weakenings/weaken.py oauth              # all of oauth.py, one by one: a build each, so hours
    tests/weakenings/weaken.py walls name chunks  # some of walls.py
    tests/weakenings/weaken.py walls --together   # all in one build: each test must fail, but may fail for another's reason
    tests/weakenings/weaken.py walls --check      # only compares the entries with the source

The source is restored at the end and must be committed before. A weakening names the test that must fail. If it passes, a
test is missing and the exit code is 1.
"""

import importlib
import json
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Longer than any test takes, in seconds.
SECONDS_MAX = 300

def find(text, wanted):
    """The first place of a text, line breaks and indentation aside, as start and end. None if it is not there."""
    places = [index for index, character in enumerate(text) if not character.isspace()]
    at = "".join(text.split()).find("".join(wanted.split()))
    if at < 0:
        return None
    return places[at], places[at + len("".join(wanted.split())) - 1] + 1


def apply(weakening):
    _, file, before, after, _ = weakening
    path = ROOT / "src" / file
    text = path.read_text()
    place = find(text, before)
    if place is None:
        sys.exit(f"{weakening[0]}: {file} does not have {before!r} any more")
    path.write_text(text[: place[0]] + after + text[place[1] :])


def stale(weakening):
    """Why an entry no longer fits the source, if it does not."""
    name, file, before, _, test = weakening
    path = ROOT / "src" / file
    if not path.exists():
        return f"{name}: there is no {file}"
    if find(path.read_text(), before) is None:
        return f"{name}: {file} does not have {before!r}"
    folders = [ROOT / "src", ROOT / "tests", ROOT / "crates"]
    if not any(f"fn {test}(" in source.read_text() for folder in folders for source in folder.rglob("*.rs")):
        return f"{name}: there is no test {test}"
    return None


def restore():
    subprocess.run(["git", "checkout", "--quiet", "--", "src"], cwd=ROOT, check=True)


def failed(test):
    """Whether the test fails. What does not compile is no weakening."""
    # Tables stand beside the code, attacks in the integration tests: only what has the test is built.
    beside = any(f"fn {test}(" in path.read_text() for path in (ROOT / "src").rglob("*.rs"))
    target = ["--lib"] if beside else ["--test", "it"]
    build = subprocess.run(["cargo", "test", "--no-run", *target], cwd=ROOT, capture_output=True, text=True)
    if build.returncode != 0:
        sys.exit(f"does not compile:\n{build.stderr[-4000:]}")
    # The server that tests share comes from a binary that was built before anything was weakened.
    run = ["cargo", "test", *target, "--", test]
    # A test that waits for a refusal may wait for ever without the guard.
    limit = ["timeout", "--signal=INT", str(SECONDS_MAX)]
    done = subprocess.run([*limit, GANTRY, "with-postgres", "--", *run], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 124:
        return True
    if f"::{test} ... " not in done.stdout:
        sys.exit(f"there is no test {test}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode != 0


def survivors(chosen, together):
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
    sys.exit("name a list: oauth or walls")
WEAKENINGS = importlib.import_module(sys.argv[1]).WEAKENINGS
if "--check" in sys.argv:
    problems = [problem for problem in map(stale, WEAKENINGS) if problem]
    print("\n".join(problems) or f"all {len(WEAKENINGS)} entries fit the source")
    sys.exit(1 if problems else 0)
if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=ROOT).returncode != 0:
    sys.exit("commit what you changed first: it would be lost")
# The integration tests bring the server with them; built by itself it would have other features, and its dependencies twice.
subprocess.run(["cargo", "test", "--quiet", "--no-run", "--test", "it"], cwd=ROOT, check=True)
meta = subprocess.run(["cargo", "metadata", "--no-deps", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True, text=True)

built = pathlib.Path(json.loads(meta.stdout)["target_directory"], "debug", "gantry")
GANTRY = built.with_name("gantry-before-weakening")
shutil.copy(built, GANTRY)
names = [name for name in sys.argv[2:] if name != "--together"]
unknown = set(names) - {weakening[0] for weakening in WEAKENINGS}
if unknown:
    sys.exit(f"unknown: {', '.join(sorted(unknown))}")
chosen = [weakening for weakening in WEAKENINGS if not names or weakening[0] in names]
try:
    left = list(survivors(chosen, "--together" in sys.argv))
finally:
    restore()
print(f"{len(chosen) - len(left)} of {len(chosen)} caught")
sys.exit(1 if left else 0)
