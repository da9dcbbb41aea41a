"""Cases in the BigQuery dialect with expectations written from its documentation.

Each function has a rule in Python, which is applied to the values of the lines.
"""

import json
import math
import re
import statistics
from datetime import datetime, timedelta, timezone

MISSING = object()


def attribute(name):
    return lambda line: line["attributes"].get(name)


def integer(text):
    return int(text) if text is not None and re.fullmatch(r"[+-]?\d+", text) and -(2**63) <= int(text) < 2**63 else None


def time(line):
    return datetime.fromtimestamp(line["timestamp"] / 1e6, timezone.utc)


def micros(at):
    return round((at - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(microseconds=1))


def half_up(number, places=0):
    scale = 10**places
    return math.copysign(math.floor(abs(number) * scale + 0.5), number) / scale


def json_at(document, *path):
    try:
        value = json.loads(document)
        for key in path:
            value = value[key]
        return value
    except (ValueError, KeyError, IndexError, TypeError):
        return MISSING


def scalar(value):
    if value is MISSING or value is None or isinstance(value, (dict, list)):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def query(value):
    return None if value is MISSING or value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def first(pattern, text):
    found = re.search(pattern, text)
    return None if found is None else found.group(1 if found.re.groups else 0)


def truncated(at, unit):
    parts = {"day": 3, "hour": 4, "minute": 5, "second": 6}[unit]
    return datetime(*at.timetuple()[:parts], tzinfo=timezone.utc)


T = "m.t"
N = "cast(m.n as int64)"
F = "safe_cast(m.f as float64)"


def floats(text):
    try:
        return float(text) if text and text.strip() == text else None
    except ValueError:
        return None


def text_rules():
    """Function, expression and rule over the text `t`, which is null in some lines."""
    yield "lower", f"lower({T})", lambda t: t.lower()
    yield "upper", f"upper({T})", lambda t: t.upper() if t != "ﬀ" else "FF"
    yield "length", f"length({T})", len
    yield "char_length", f"char_length({T})", len
    yield "trim", f"trim({T})", lambda t: t.strip()
    yield "ltrim", f"ltrim({T})", lambda t: t.lstrip()
    yield "rtrim", f"rtrim({T})", lambda t: t.rstrip()
    yield "left", f"left({T}, 2)", lambda t: t[:2]
    yield "right", f"right({T}, 2)", lambda t: t[-2:]
    yield "substr", f"substr({T}, 2, 2)", lambda t: t[1:3]
    yield "starts_with", f"starts_with({T}, 'a')", lambda t: t.startswith("a")
    yield "ends_with", f"ends_with({T}, 'c')", lambda t: t.endswith("c")
    yield "contains_substr", f"contains_substr({T}, 'HELLO')", lambda t: "hello" in t.lower()
    yield "strpos", f"strpos({T}, 'ö')", lambda t: t.find("ö") + 1
    yield "replace", f"replace({T}, 'a', 'äx')", lambda t: t.replace("a", "äx")
    yield "concat", f"concat({T}, '-', {T})", lambda t: f"{t}-{t}"
    yield "split", f"split({T}, ',')", lambda t: t.split(",")
    yield "array_length", f"array_length(split({T}, ','))", lambda t: len(t.split(","))
    yield "array_to_string", f"array_to_string(split({T}, ','), '+')", lambda t: t.replace(",", "+")
    yield "regexp_contains", rf"regexp_contains({T}, r'\d+')", lambda t: re.search("[0-9]", t) is not None
    yield "regexp_extract", f"regexp_extract({T}, r'([a-z])([a-z])')", lambda t: first("([a-z])([a-z])", t)
    yield "regexp_extract_all", f"regexp_extract_all({T}, r'[a-z0-9]')", lambda t: re.findall("[a-z0-9]", t)
    yield "regexp_replace", rf"regexp_replace({T}, r'([a-z])', r'<\1>')", lambda t: re.sub("([a-z])", r"<\1>", t)
    yield "safe_cast", f"safe_cast({T} as int64)", lambda t: integer(t.strip()) if t.strip() == t else None


def number_rules():
    yield "abs", f"abs({N})", abs
    yield "mod", f"mod({N}, 7)", lambda n: int(math.fmod(n, 7))
    yield "div", f"div({N}, 7)", lambda n: int(n / 7)
    yield "round", f"round({N} / 8)", lambda n: half_up(n / 8)
    yield "round", f"round({N} / 8, 1)", lambda n: half_up(n / 8, 1)
    yield "safe_divide", f"safe_divide({N}, {N} - {N})", lambda n: None
    yield "greatest", f"greatest({N}, 5)", lambda n: max(n, 5)
    yield "least", f"least({N}, 5)", lambda n: min(n, 5)
    yield "sqrt", f"sqrt(abs({N}))", lambda n: math.sqrt(abs(n))
    yield "if", f"if({N} > 0, 'plus', 'minus')", lambda n: "plus" if n > 0 else "minus"
    yield "nullif", f"nullif({N}, 5)", lambda n: None if n == 5 else n
    yield "case", f"case when {N} < 0 then -1 when {N} = 0 then 0 else 1 end", lambda n: (n > 0) - (n < 0)
    yield "/", f"{N} / 4", lambda n: n / 4


def json_rules():
    yield "json_value", "json_value(m.j, '$.a')", lambda j: scalar(json_at(j, "a"))
    yield "json_value", "json_value(m.j, '$.b[1]')", lambda j: scalar(json_at(j, "b", 1))
    yield "json_extract_scalar", "json_extract_scalar(m.j, '$.a.b')", lambda j: scalar(json_at(j, "a", "b"))
    yield "json_query", "json_query(m.j, '$.a')", lambda j: query(json_at(j, "a"))
    yield "json_extract", "json_extract(m.j, '$.b')", lambda j: query(json_at(j, "b"))


def time_rules():
    for unit in ["second", "minute", "hour", "day"]:
        yield "timestamp_trunc", f"timestamp_trunc(timestamp, {unit})", lambda at, unit=unit: micros(truncated(at, unit))
    yield "timestamp_sub", "timestamp_sub(timestamp, interval 90 minute)", lambda at: micros(at - timedelta(minutes=90))
    yield "timestamp_add", "timestamp_add(timestamp, interval -2 day)", lambda at: micros(at - timedelta(days=2))
    yield "unix_micros", "unix_micros(timestamp)", micros
    yield "unix_millis", "unix_millis(timestamp)", lambda at: micros(at) // 1000
    yield "unix_seconds", "unix_seconds(timestamp)", lambda at: micros(at) // 1_000_000
    yield "timestamp_millis", "timestamp_millis(unix_millis(timestamp))", lambda at: micros(at) // 1000 * 1000
    yield "datetime", "datetime(timestamp)", lambda at: at.strftime("%Y-%m-%dT%H:%M:%S.%f")
    yield "datetime_sub", "datetime_sub(datetime(timestamp), interval 3 hour)", lambda at: (at - timedelta(hours=3)).strftime("%Y-%m-%dT%H:%M:%S.%f")
    yield "date", "date(timestamp)", lambda at: at.strftime("%Y-%m-%d")
    yield "extract", "extract(hour from timestamp)", lambda at: at.hour
    yield "extract", "extract(dayofweek from timestamp)", lambda at: at.isoweekday() % 7 + 1
    yield "format_timestamp", "format_timestamp('%Y/%m/%d %H-%M-%S %j %a %B', timestamp)", lambda at: at.strftime("%Y/%m/%d %H-%M-%S %j %a %B")
    yield "timestamp_diff", "timestamp_diff(timestamp, timestamp '2026-11-20 00:30:00', hour)", lambda at: int((at - datetime(2026, 11, 20, 0, 30, tzinfo=timezone.utc)) / timedelta(hours=1))


def element(values, at, count):
    """Element of APPROX_QUANTILES: the smallest value with at least the share of values up to it."""
    values = sorted(values)
    return values[max(math.ceil(at / count * len(values)) - 1, 0)]


def aggregate_rules():
    """Function, expression and rule over lines."""
    n = lambda lines: [int(line["attributes"]["n"]) for line in lines]
    t = lambda lines: [line["attributes"]["t"] for line in lines if "t" in line["attributes"]]
    yield "count", "count(*)", len
    yield "count", f"count({T})", lambda lines: len(t(lines))
    yield "count", f"count(distinct {T})", lambda lines: len(set(t(lines)))
    yield "countif", f"countif({N} > 0)", lambda lines: sum(it > 0 for it in n(lines))
    yield "sum", f"sum({N})", lambda lines: sum(n(lines))
    yield "avg", f"avg({N})", lambda lines: statistics.fmean(n(lines))
    yield "min", f"min({T})", lambda lines: min(t(lines), key=lambda it: it.encode(), default=None)
    yield "max", f"max({T})", lambda lines: max(t(lines), key=lambda it: it.encode(), default=None)
    yield "approx_count_distinct", f"approx_count_distinct({T})", lambda lines: len(set(t(lines)))
    yield "approx_quantiles", f"approx_quantiles({N}, 4)", lambda lines: [element(n(lines), at, 4) for at in range(5)]
    yield "approx_quantiles", f"approx_quantiles({N}, 100)[offset(95)]", lambda lines: element(n(lines), 95, 100)
    yield "stddev", f"stddev({N})", lambda lines: statistics.stdev(n(lines)) if len(lines) > 1 else None
    yield "stddev_samp", f"stddev_samp({N})", lambda lines: statistics.stdev(n(lines)) if len(lines) > 1 else None
    yield "stddev_pop", f"stddev_pop({N})", lambda lines: statistics.pstdev(n(lines))
    yield "logical_or", f"logical_or({N} > 900)", lambda lines: any(it > 900 for it in n(lines))
    yield "logical_and", f"logical_and({N} > -900)", lambda lines: all(it > -900 for it in n(lines))
    yield "array_agg", "array_agg(id order by id desc limit 2)", lambda lines: sorted((line["id"] for line in lines), reverse=True)[:2]
    yield "array_agg", f"array_agg({N} order by {N}, id limit 3)", lambda lines: sorted(n(lines))[:3]
    yield "string_agg", "string_agg(id, '; ' order by id)", lambda lines: "; ".join(sorted(line["id"] for line in lines))
    yield "string_agg", "string_agg(id order by id limit 2)", lambda lines: ",".join(sorted(line["id"] for line in lines)[:2])


def cases(rng, lines, count, now):
    last = lines[-1]["id"]
    source = f"from edge_logs cross join unnest(metadata) as m where id <= '{last}'"
    found = []

    def add(function, sql, rows, tolerance="exact"):
        found.append({"dialect": "bigquery", "function": function, "sql": sql, "tolerance": tolerance, "now": now, "expected": {"rows": rows}})

    nullable = lambda rule: lambda value: None if value is None else rule(value)
    values = [
        (text_rules(), attribute("t")),
        (number_rules(), lambda line: int(line["attributes"]["n"])),
        (json_rules(), attribute("j")),
        (time_rules(), time),
    ]
    for rules, value in values:
        for function, expression, rule in rules:
            for _ in range(max(1, count // 3)):
                chosen = sorted(rng.sample(lines, 40), key=lambda line: line["id"])
                ids = ", ".join(f"'{line['id']}'" for line in chosen)
                sql = f"select id, {expression} as x {source} and id in ({ids}) order by id"
                add(function, sql, [[line["id"], nullable(rule)(value(line))] for line in chosen])
    for function, expression, rule in aggregate_rules():
        groups = {}
        for line in lines:
            groups.setdefault(line["attributes"]["g"], []).append(line)
        sql = f"select m.g as g, {expression} as x {source} group by g order by g"
        add(function, sql, [[group, rule(groups[group])] for group in sorted(groups)], "float")
    for function, over, rule in [
        ("row_number", "row_number() over (order by id)", lambda at: at + 1),
        ("lag", "lag(id) over (order by id)", lambda at: lines[at - 1]["id"] if at else None),
        ("lag", "lag(id, 2, 'none') over (order by id)", lambda at: lines[at - 2]["id"] if at > 1 else "none"),
        ("lead", "lead(id) over (order by id)", lambda at: lines[at + 1]["id"] if at + 1 < len(lines) else None),
    ]:
        add(function, f"select id, {over} as x {source} order by id", [[line["id"], rule(at)] for at, line in enumerate(lines)])
    for function, expression, rule in [
        ("to_json_string", f"to_json_string({T})", lambda line: json.dumps(line["attributes"].get("t"), ensure_ascii=False)),
        ("coalesce", f"coalesce({T}, 'none')", lambda line: line["attributes"].get("t", "none")),
        ("ifnull", f"ifnull({T}, '')", lambda line: line["attributes"].get("t", "")),
        ("metadata[offset(0)]", "metadata[offset(0)].response[offset(0)].status_code", lambda line: line["attributes"]["response.status_code"]),
        ("safe_cast", f"{F}", lambda line: floats(line["attributes"]["f"])),
    ]:
        add(function, f"select id, {expression} as x {source} order by id", [[line["id"], rule(line)] for line in lines])
    return found
