"""Writes lines and random statements over them.

`generate.py FOLDER [--seed N] [--cases N]`: N cases for each function.
"""

import argparse
import json
import pathlib
import random

DAY = 1_795_132_800_000_000
NOW = DAY + 12 * 3_600_000_000
LINES = 20_000
SMALL = 120

TEXTS = [
    "", "a", "abc", "ABC", "äöü", "Ünï", "日本語", "Hello World", "it's", "12", "-5", "3.7", "+7", "007",
    "a,b,c", ",", " x ", "foo bar-baz", "%_", "a\\b", "300", "2147483648", "x=1&y=2", "null", "true",
    "99999999999999999999", "1e3", "a.b.c", "ﬀ", "tab\there", "line\nbreak",
]
JSONS = [
    "", "x", "{}", "[]", "5", '"text"', '{"a":1}', '{"a":"x","b":[1,2,3]}', '{"a":{"b":"ä"}}', '{"a":null}',
    '{"a":true,"z":1,"b":2}', '{"a":-5.5}', '{"a":"7"}', '{"a":[{"b":1},{"b":"y"}]}', '{"a":', '{"b":{"a":[]}}',
]
URLS = [
    "", "/", "/a/b", "/a/b?x=1&y=2", "https://www.example.com/p/q?x=ä&z=%20#f", "http://user:pw@a.b:8080/x",
    "a.b/c?d", "//host.tld/p", "https://a.b", "?x=1", "nothing", "https://a.b?x=2", "/p#frag?x=1", "ftp://a.b.c/d/",
]
INTEGERS = ["0", "1", "-1", "7", "42", "-300", "127", "128", "255", "256", "65536", "", "x", "12.5", "9223372036854775807"]
FLOATS = ["0", "0.5", "1.5", "2.5", "-2.5", "3.14159", "1e3", "-0.001", "", "none", "100"]


def lines(rng):
    """A large group, three of middle size, and small ones."""
    result = []
    for n in range(LINES):
        group = "large" if n % 5 < 3 else ["m1", "m2", "m3"][n % 3] if n % 7 else f"s{n % 40}"
        attributes = {
            "g": group,
            "t": rng.choice(TEXTS),
            "i": rng.choice(INTEGERS),
            "n": str(rng.randint(-1000, 1000)),
            "f": rng.choice(FLOATS),
            "v": f"{rng.lognormvariate(3, 1.5):.3f}",
            "j": rng.choice(JSONS),
            "u": rng.choice(URLS),
            "response.status_code": rng.choice([200, 201, 404, 500]),
        }
        if n % 9 == 0:
            del attributes["t"]
        result.append({
            "id": f"l{n:05}",
            "timestamp": DAY + n * 4_320_000 + rng.randrange(4_000_000),
            "event_message": rng.choice(TEXTS) + rng.choice(["", " ", "é"]) + rng.choice(TEXTS),
            "attributes": attributes,
        })
    return result


def quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t") + "'"


class ClickHouse:
    """Random typed expressions."""

    def __init__(self, rng):
        self.rng = rng

    def leaf(self, kind):
        rng = self.rng
        attribute = lambda name: f"log_attributes['{name}']"
        if kind == "text":
            return rng.choice([attribute("t"), attribute("t"), "event_message", attribute("missing"), attribute("u"), quoted(rng.choice(TEXTS))])
        if kind == "int":
            return rng.choice([f"toInt64OrZero({attribute('n')})", f"toInt32OrZero({attribute('i')})", str(rng.randint(-9, 300)), f"toInt64(length({attribute('t')}))"])
        if kind == "small":
            return str(rng.randint(-4, 6))
        if kind == "nint":
            return f"toInt64OrNull({attribute('n')})"
        if kind == "float":
            return rng.choice([f"toFloat64OrZero({attribute('f')})", f"toFloat64OrZero({attribute('v')})", f"{rng.uniform(-9, 9):.2f}", "2.5", "-0.5"])
        if kind == "number":
            return self.leaf(rng.choice(["int", "float"]))
        if kind == "numeral":
            return rng.choice([attribute("i"), attribute("f"), quoted(rng.choice(TEXTS))])
        if kind == "bool":
            return f"({self.leaf('int')} {rng.choice(['<', '>', '=', '>=', '!='])} {self.leaf('int')})"
        if kind == "time":
            return rng.choice(["timestamp", "toDateTime('2026-11-03 04:05:06')", "toDateTime('2024-02-29 23:59:59')", "now()"])
        if kind == "local":
            return f"toTimeZone({self.leaf('time')}, {self.leaf('zone')})"
        if kind == "date":
            return rng.choice(["toDate(timestamp)", "toDate('2026-01-31')", "toDate('2024-02-29')"])
        if kind == "json":
            return attribute("j")
        if kind == "url":
            return attribute("u")
        if kind == "texts":
            return rng.choice([f"splitByChar(',', {attribute('t')})", "['b','a','','a']", f"splitByChar('.', {attribute('t')})", f"extractAll({attribute('t')}, '[a-z0-9]')"])
        if kind == "ints":
            return rng.choice(["[3,-1,2,2]", f"[{self.leaf('int')}, {self.leaf('int')}]"])
        if kind == "textlit":
            return quoted(rng.choice([t for t in TEXTS if t]))
        if kind == "key":
            return quoted(rng.choice(["a", "b", "z"]))
        if kind == "index":
            return str(rng.choice([1, 2, -1, 3]))
        if kind == "path":
            return quoted(rng.choice(["$.a", "$.a.b", "$.b[0]", "$.a[1].b", "$"]))
        if kind == "pattern":
            return quoted(rng.choice(["[a-z]+", "(\\d)(\\d*)", "^a", "b$", "ö+", ".", "x|y", "[^,]*", "(?i)HELLO"]))
        if kind == "replacement":
            return quoted(rng.choice(["", "X", "[\\0]", "$1"]))
        if kind == "zone":
            return quoted(rng.choice(["Asia/Kolkata", "America/New_York", "UTC"]))
        if kind == "format":
            return quoted(rng.choice(["%Y-%m-%d %H:%i:%S", "%M %e %y", "%j|%u|%w|%V|%G", "%a %b %W %h %p %R %T %D %F %C %l %k"]))
        raise KeyError(kind)

    def any(self, kind, depth):
        if depth > 0 and self.rng.random() < 0.6:
            producers = [f for f in CLICKHOUSE if f[1] == kind]
            if producers:
                return self.call(self.rng.choice(producers), depth - 1)
        return self.leaf(kind)

    def call(self, function, depth=0):
        name, _, *forms = function
        kinds = self.rng.choice(forms)
        if "{" in name:
            return name.format(*(self.any(kind, depth) for kind in kinds.split()))
        return f"{name}({', '.join(self.any(kind, depth) for kind in kinds.split())})"


# Name or form, type of the result, and the types of the arguments in each form.
CLICKHOUSE = [
    ("if", "text", "bool text text"), ("if", "int", "bool int int"),
    ("multiIf", "text", "bool text bool text text"),
    ("coalesce", "int", "nint int"), ("ifNull", "int", "nint int"), ("nullIf", "ntext", "text text"),
    ("isNull", "bool", "nint"), ("isNotNull", "bool", "nint"), ("not", "bool", "bool"),
    ("assumeNotNull", "int", "int"),
    ("abs", "float", "number"), ("greatest", "number", "number number"), ("least", "number", "number number"),
    ("greatest", "text", "text text"),
    ("round", "float", "float", "float small"), ("round", "int", "int"), ("sqrt", "nfloat", "float"),
    ("log", "nfloat", "float"), ("log10", "nfloat", "float"), ("pow", "nfloat", "small small"), ("power", "nfloat", "small small"),
    ("intDiv({}, 7)", "int", "int"), ("modulo({}, 7)", "int", "int"), ("({} % 5)", "int", "int"),
    ("({} + {})", "float", "number number"), ("({} - {})", "float", "number number"), ("({} * {})", "float", "number number"),
    ("({} / {})", "nfloat", "number number"), ("(- {})", "float", "number"),
    ("floor", "float", "float"), ("ceil", "float", "float"),
] + [
    (f"to{sign}Int{bits}Or{suffix}", "int" if suffix == "Zero" else "nnint", "numeral")
    for sign in ["", "U"] for bits in [8, 16, 32, 64] for suffix in ["Zero", "Null"] if (sign, bits) != ("U", 64)
] + [
    (f"to{sign}Int{bits}", "int", "int") for sign in ["", "U"] for bits in [8, 16, 32] 
] + [
    ("toInt64", "int", "int", "float"), ("toUInt64OrZero", "uint", "numeral"), ("toUInt64OrNull", "uint", "numeral"), ("toUInt64(abs({}))", "int", "int"),
    ("toFloat64OrZero", "float", "numeral"), ("toFloat64OrNull", "nfloat", "numeral"), ("toFloat64", "float", "number"), ("toFloat32", "f32", "int"),
    ("toFloat32OrZero", "f32", "numeral"), ("toFloat32OrNull", "f32", "numeral"),
    ("toString", "text", "int", "float", "text", "date"),
    ("match", "bool", "text pattern"), ("extract", "text", "text pattern"), ("extractAll", "texts", "text pattern"),
    ("replaceRegexpAll", "text", "text pattern replacement"), ("replaceRegexpOne", "text", "text pattern replacement"),
    ("replaceAll", "text", "text textlit text"), ("replace", "text", "text textlit text"),
    ("concat", "text", "text text", "text int text"), ("({} || {})", "text", "text text"),
    ("like", "bool", "text text"), ("notLike", "bool", "text text"), ("ilike", "bool", "text text"), ("notILike", "bool", "text text"),
    ("({} like '%a%')", "bool", "text"), ("({} ilike 'Ä%')", "bool", "text"), ("({} in ('a', '12', 'äöü'))", "bool", "text"),
    ("({} between {} and {})", "bool", "int int int"), ("({} = {})", "bool", "text text"), ("({} < {})", "bool", "text text"),
    ("position", "int", "text text"), ("positionUTF8", "int", "text text"), ("positionCaseInsensitive", "int", "text text"),
    ("positionCaseInsensitiveUTF8", "int", "text text"),
    ("startsWith", "bool", "text text"), ("endsWith", "bool", "text text"), ("hasToken({}, 'foo')", "bool", "text"),
    ("empty", "bool", "text", "texts", "ints"), ("notEmpty", "bool", "text", "texts", "ints"),
    ("lower", "text", "text"), ("upper", "text", "text"), ("lowerUTF8", "text", "text"), ("upperUTF8", "text", "text"),
    ("length", "int", "text", "texts", "ints"), ("lengthUTF8", "int", "text"),
    ("trimBoth", "text", "text"), ("trimLeft", "text", "text"), ("trimRight", "text", "text"),
    ("left", "cut", "text small"), ("right", "cut", "text small"), ("leftUTF8", "text", "text small"),
    ("substring", "cut", "text small", "text small small"), ("substringUTF8", "text", "text small", "text small small"),
    ("splitByChar(',', {})", "texts", "text"), ("splitByString", "texts", "textlit text"), ("splitByString('', {})", "bytes", "text"),
    ("JSONExtractString", "text", "json", "json key", "json key key", "json key index"), ("JSONExtractRaw", "raw", "json key", "json key key"),
    ("JSONExtractInt", "int", "json key", "json key index"), ("JSONExtractUInt", "uint", "json key"),
    ("JSONExtractFloat", "float", "json key"), ("JSONExtractBool", "bool", "json key"), ("JSONExtractKeys", "texts", "json", "json key"),
    ("JSONHas", "bool", "json key", "json key key"), ("JSONLength", "int", "json", "json key"), ("JSON_VALUE", "text", "json path"), ("isValidJSON", "bool", "json"),
    ("path", "text", "url"), ("pathFull", "text", "url"), ("domain", "text", "url"), ("domainWithoutWWW", "text", "url"), ("protocol", "text", "url"),
    ("queryString", "text", "url"), ("cutQueryString", "text", "url"), ("cutQueryStringAndFragment", "text", "url"), ("decodeURLComponent", "text", "url"),
    ("extractURLParameter({}, 'x')", "text", "url"),
    ("arraySort(mapKeys(log_attributes))[{}]", "text", "small"), ("length(mapValues(log_attributes))", "int", ""), ("mapContains(log_attributes, 't')", "bool", ""),
    ("has", "bool", "texts text", "ints int"), ("hasAny", "bool", "texts texts"), ("hasAll", "bool", "texts texts"), ("indexOf", "int", "texts text"),
    ("arraySort", "texts", "texts"), ("arrayReverseSort", "texts", "texts"), ("arrayReverse", "texts", "texts"), ("arraySort(arrayDistinct({}))", "texts", "texts"),
    ("arraySort", "ints", "ints"), ("arrayElement", "text", "texts index"), ("{}[{}]", "text", "texts index"),
    ("arrayStringConcat({}, '-')", "text", "texts"), ("arrayStringConcat({})", "text", "texts"),
    ("arrayMap(x -> upper(x), {})", "texts", "texts"), ("arrayMap(x -> x + {}, {})", "ints", "int ints"), ("arrayMap(x -> length(x), {})", "ints", "texts"),
    ("arrayFilter(x -> x != '', {})", "texts", "texts"), ("arrayFilter(x -> x > 2, {})", "ints", "ints"),
    ("arrayExists(x -> x = 'a', {})", "bool", "texts"), ("arrayCount(x -> x > 1, {})", "int", "ints"),
    ("tuple", "tuple", "int text"), ("tupleElement(({}, {}), 2)", "text", "int text"), ("({}, {}).1", "int", "int text"),
    ("toDate", "date", "time"), ("toDateTime", "time", "time", "date"), ("toDateTime64({}, 6)", "time", "time"),
    ("parseDateTimeBestEffort('2026-11-03 04:05:06')", "time", ""),
] + [
    (f"toStartOf{unit}", result, arguments)
    for unit in ["Minute", "FiveMinutes", "TenMinutes", "FifteenMinutes", "Hour", "Day"] for result, arguments in [("time", "time"), ("local", "time zone")]
] + [
    ("toStartOfFiveMinute", "time", "time"), ("toStartOfSecond(toDateTime64({}, 6))", "second64", "time"),
    ("toMonday", "date", "time"), ("toStartOfWeek", "date", "time"), ("toStartOfMonth", "date", "time"),
    ("toStartOfInterval({}, interval 7 minute)", "time", "time"), ("toStartOfInterval({}, interval 2 hour)", "time", "time"),
    ("toStartOfInterval({}, interval 1 day)", "time", "time"),
    ("dateTrunc('hour', {})", "time", "time"), ("dateTrunc('minute', {})", "time", "time"), ("date_trunc('day', {})", "time", "time"),
    ("toUnixTimestamp", "int", "time"), ("toUnixTimestamp64Milli(toDateTime64({}, 3))", "int", "time"), ("toUnixTimestamp64Micro(toDateTime64({}, 6))", "int", "time"),
    ("fromUnixTimestamp(1000000000 + abs({}))", "time", "int"), ("fromUnixTimestamp64Milli(toInt64(abs({})) % 253402300799000)", "milli", "int"), ("fromUnixTimestamp64Micro(toInt64(abs({})) % 253402300799000000)", "micro", "int"),
    ("formatDateTime", "text", "time format", "time format zone"),
    ("toYear", "int", "time", "date"), ("toMonth", "int", "time", "date"), ("toDayOfMonth", "int", "time"), ("toHour", "int", "time", "time zone"),
    ("toMinute", "int", "time"), ("toSecond", "int", "time"), ("toDayOfWeek", "int", "time", "date"), ("toDayOfYear", "int", "date"),
    ("toYYYYMM", "int", "time", "date"), ("toYYYYMMDD", "int", "time", "date"), ("toTimeZone", "local", "time zone"), ("toHour", "int", "local"), ("toYYYYMMDD", "int", "local"), ("toDate", "date", "local"),
    ("dateDiff('minute', {}, {})", "int", "time time"), ("dateDiff('hour', {}, {})", "int", "time time"), ("dateDiff('day', {}, {})", "int", "time time", "date date"),
    ("dateDiff('month', {}, {})", "int", "date date"), ("dateDiff('week', {}, {})", "int", "date date"), ("dateDiff('year', {}, {})", "int", "date date"),
    ("({} + interval 90 minute)", "time", "time"), ("({} - interval 1 month)", "time", "time"), ("({} + toIntervalDay(2))", "time", "time"),
    ("today()", "date", ""), ("yesterday()", "date", ""), ("now()", "time", ""), ("toUnixTimestamp(now('UTC'))", "int", ""),
] + [
    (f"{verb}{unit}s", "time", "time small") for verb in ["add", "subtract"] for unit in ["Second", "Minute", "Hour", "Day", "Week", "Month", "Quarter", "Year"]
] + [
    (f"{verb}{unit}s", "date", "date small") for verb in ["add", "subtract"] for unit in ["Day", "Week", "Month", "Year"]
]

# Aggregates, with the tolerance of the comparison.
AGGREGATES = [
    ("count()", "exact"), ("count({text})", "exact"), ("count({nint})", "exact"), ("countIf({bool})", "exact"), ("count(distinct {text})", "exact"),
    ("sum({int})", "exact"), ("sum({float})", "float"), ("sumIf({int}, {bool})", "exact"), ("sum({nint})", "exact"),
    ("avg({float})", "float"), ("avg({nint})", "float"), ("avgIf({int}, {bool})", "float"),
    ("min({text})", "exact"), ("max({text})", "exact"), ("min({int})", "exact"), ("max({float})", "exact"), ("maxIf({int}, {int} > 5000)", "exact"),
    ("minIf({text}, {int} > 5000)", "exact"), ("max(timestamp)", "exact"), ("min({nint})", "exact"),
    ("argMax(id, timestamp)", "exact"), ("argMin(id, timestamp)", "exact"), ("argMaxIf(id, timestamp, {int} > 5000)", "exact"),
    ("uniq({text})", "exact"), ("uniqExact({text})", "exact"), ("uniqExact({int})", "exact"), ("uniq(id)", "distinct"), ("uniqIf({text}, {bool})", "exact"),
    ("quantile(0.5)(V)", "rank 0.5"), ("quantile(0.95)(V)", "rank 0.95"), ("quantile(0.99)(V)", "rank 0.99"), ("median(V)", "rank 0.5"),
    ("quantiles(0.05, 0.5, 0.999)(V)", "rank 0.05 0.5 0.999"), ("quantileTDigest(0.9)(V)", "rank 0.9"), ("quantileExact(0.95)(V)", "exact"), ("quantileExact(0.3)({int})", "exact"),
    ("quantileIf(0.5)({float}, {int} > 50000)", "exact"),
    ("stddevPop({float})", "float"), ("stddevSamp({float})", "float"),
    ("arraySort(groupUniqArray({text}))", "exact"), ("length(groupArray({int}))", "exact"), ("length(groupArray(3)({text}))", "exact"), ("length(groupArray({nint}))", "exact"),
    ("arraySort(groupArray({int}))", "exact"), ("length(groupUniqArray(2)({text}))", "exact"), ("length(groupArrayIf({text}, {bool}))", "exact"),
    ("any(log_attributes['g'])", "shape"), ("anyLast(log_attributes['g'])", "shape"), ("length(topK(3)({text}))", "exact"), ("topK(1)(log_attributes['g'])", "exact"),
    ("arraySort(topK(4)(log_attributes['response.status_code']))", "exact"),
]
WINDOWS = [
    "row_number() over (order by id)", "rank() over (order by {text})", "dense_rank() over (order by {text})",
    "lagInFrame({int}) over (order by id)", "lagInFrame({text}, 2) over (order by id)", "lagInFrame({int}, 1, -7) over (partition by log_attributes['g'] order by id)",
    "lagInFrame({nint}) over (order by id)", "sum({int}) over (partition by log_attributes['g'])", "count() over (partition by {text})", "lag({text}) over (order by id)", "lead({int}, 1, 0) over (order by id)",
]


def clickhouse_cases(rng, count):
    expressions = ClickHouse(rng)
    cases = []
    small = f"from logs where id < 'l{SMALL:05}' order by id"

    def add(function, sql, tolerance="exact"):
        cases.append({"dialect": "clickhouse", "function": function, "sql": sql, "tolerance": tolerance, "now": NOW})

    for function in CLICKHOUSE:
        for n in range(count):
            add(function[0], f"select id, {expressions.call(function, n % 3)} as x {small}")
    for template, tolerance in AGGREGATES:
        for n in range(count):
            text = template
            for kind in ["text", "int", "nint", "float", "bool"]:
                while "{" + kind + "}" in text:
                    text = text.replace("{" + kind + "}", expressions.any(kind, n % 2) if tolerance != "rank" else expressions.leaf(kind), 1)
            text = text.replace("V", "toFloat64OrZero(log_attributes['v'])") if tolerance.startswith("rank") or "V" in text else text
            if n % 3 == 2:
                add(template, f"select '' as g, {text} as x from logs", tolerance)
            elif n % 3 == 1:
                add(template, f"select log_attributes['g'] as g, {text} as x from logs where {expressions.leaf('bool')} group by g order by g", "shape" if tolerance.startswith("rank") else tolerance)
            else:
                add(template, f"select log_attributes['g'] as g, {text} as x from logs group by g order by g", tolerance)
    for template in WINDOWS:
        for n in range(count):
            text = template
            for kind in ["text", "int", "nint"]:
                text = text.replace("{" + kind + "}", expressions.any(kind, n % 2))
            add(template, f"select id, {text} as x {small}")
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=6)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    import bigquery

    data = lines(rng)
    cases = clickhouse_cases(rng, options.cases) + bigquery.cases(rng, data[:SMALL], options.cases, NOW)
    (options.folder / "lines.json").write_text(json.dumps(data))
    (options.folder / "cases.json").write_text(json.dumps(cases))


if __name__ == "__main__":
    main()
