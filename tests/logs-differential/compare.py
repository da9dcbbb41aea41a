"""Compares the answers with those of ClickHouse and with the written expectations.

`compare.py FOLDER` exits with 1 if an answer differs.
"""

import bisect
import collections
import json
import math
import pathlib
import re
import sys

import chdb.session

NOW = "toDateTime('2026-11-20 12:00:00', 'UTC')"


def load(session, lines):
    session.query("create database d engine = Atomic")
    session.query(
        "create table d.logs (id String, timestamp DateTime64(6, 'UTC'), event_message String, source String, "
        "severity_text String, log_attributes Map(String, String)) engine = Memory"
    )
    rows = []
    for line in lines:
        attributes = {key: text(value) for key, value in line["attributes"].items()}
        rows.append(json.dumps({
            "id": line["id"], "timestamp": f"{line['timestamp'] / 1e6:.6f}", "event_message": line["event_message"], "source": "edge_logs",
            "severity_text": "INFO", "log_attributes": dict(sorted(attributes.items())),
        }))
    path = pathlib.Path(sys.argv[1]) / "clickhouse.jsonl"
    path.write_text("\n".join(rows))
    session.query(f"insert into d.logs select * from file('{path}', JSONEachRow, 'id String, timestamp DateTime64(6, \\'UTC\\'), event_message String, source String, severity_text String, log_attributes Map(String, String)')")


def text(value):
    return str(value)


def clickhouse(session, sql):
    sql = sql.replace("now('UTC')", NOW).replace("now()", NOW)
    sql = sql.replace("today()", f"toDate({NOW})").replace("yesterday()", f"(toDate({NOW}) - 1)")
    sql = sql.replace(" from logs", " from d.logs as logs") + " settings session_timezone = 'UTC', output_format_json_quote_64bit_integers = 0"
    try:
        answer = json.loads(str(session.query(sql, "JSONCompact")))
    except Exception as error:  # noqa: BLE001
        return None, str(error)
    return {"columns": [it["name"] for it in answer["meta"]], "rows": answer["data"]}, None


def normal(value):
    """Unifies spellings: booleans are 0 and 1, and a time has a T and a fraction only if it is not 0."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, list):
        return [normal(it) for it in value]
    if isinstance(value, str):
        if match := re.fullmatch(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?", value):
            fraction = (match[3] or "").rstrip("0")
            return f"{match[1]}T{match[2]}" + (f".{fraction}" if fraction else "")
        # The number of replacements for the bytes of a cut character differs.
        return re.sub("\ufffd+", "\ufffd", value.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))
    return value


def equal(one, other, tolerance=1e-9):
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(equal(*pair, tolerance) for pair in zip(one, other))
    numbers = (int, float)
    if isinstance(one, numbers) and isinstance(other, numbers):
        return one == other or math.isclose(one, other, rel_tol=tolerance, abs_tol=1e-12 if tolerance < 1e-8 else 1e-5)
    return one == other


def in_rank(value, level, values):
    """Whether a value is within 1 % of a rank, or exact in a group of at most 8,192."""
    if len(values) <= 8192:
        position = level * (len(values) - 1)
        low, high = values[math.floor(position)], values[math.ceil(position)]
        return math.isclose(value, low + (high - low) * (position % 1), rel_tol=1e-9, abs_tol=1e-9)
    low = bisect.bisect_left(values, value) / len(values)
    high = bisect.bisect_right(values, value) / len(values)
    return low - 0.01 <= level <= high + 0.01


def ranks(case, ours, theirs, groups):
    levels = [float(it) for it in case["tolerance"].split()[1:]]
    for row in ours["rows"]:
        values = groups[row["g"]]
        found = row["x"] if isinstance(row["x"], list) else [row["x"]]
        if len(found) != len(levels) or not all(in_rank(value, level, values) for value, level in zip(found, levels)):
            return f"group {row['g']} of {len(values)}: {found}"
    return None if len(ours["rows"]) == len(theirs["rows"]) else "different groups"


def difference(case, ours, theirs, groups):
    if "error" in ours:
        return f"refused: {ours['error']}"
    if case["tolerance"].startswith("rank"):
        return ranks(case, ours, theirs, groups)
    rows = [[row[name] for name in ours["columns"]] for row in ours["rows"]]
    if len(rows) != min(len(theirs["rows"]), 1000):
        return f"{len(rows)} rows, expected {len(theirs['rows'])}"
    tolerance = {"float": 1e-7, "distinct": 0.02}.get(case["tolerance"], 1e-9)
    for row, expected in zip(rows, theirs["rows"]):
        if case["tolerance"] == "shape":
            row, expected = row[:1], expected[:1]
        if not equal(normal(row), normal(expected), tolerance):
            return f"{json.dumps(row, ensure_ascii=False)}, expected {json.dumps(expected, ensure_ascii=False)}"
    return None


def main():
    folder = pathlib.Path(sys.argv[1])
    lines, cases, answers = (json.loads((folder / f"{name}.json").read_text()) for name in ["lines", "cases", "answers"])
    session = chdb.session.Session()
    load(session, lines)
    groups = collections.defaultdict(list)
    for line in lines:
        for group in [line["attributes"]["g"], ""]:
            groups[group].append(float(line["attributes"]["v"]))
    for values in groups.values():
        values.sort()
    functions, compared, skipped, wrong = set(), 0, 0, collections.defaultdict(list)
    for case, ours in zip(cases, answers):
        if "expected" in case:
            theirs = case["expected"]
        else:
            theirs, error = clickhouse(session, case["sql"])
            if theirs is None:
                skipped += 1
                if "-v" in sys.argv:
                    print("skipped", case["sql"], error[:200])
                continue
        compared += 1
        functions.add((case["dialect"], case["function"]))
        if found := difference(case, ours, theirs, groups):
            wrong[case["dialect"], case["function"]].append((case["sql"], found))
    for (dialect, function), found in sorted(wrong.items()):
        print(f"{dialect} {function}: {len(found)}")
        for sql, problem in found[: 3 if "-v" not in sys.argv else 99]:
            print(f"    {sql}\n        {problem[:600]}")
    mismatches = sum(map(len, wrong.values()))
    print(f"{len(functions)} functions and forms, {compared} cases, {skipped} rejected by ClickHouse, {mismatches} mismatches")
    sys.exit(1 if mismatches else 0)


if __name__ == "__main__":
    main()
