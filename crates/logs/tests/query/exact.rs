//! Values of single functions, as `ClickHouse` 26 and the documentation of `BigQuery` give them.

use gantry_logs::{
    Dialect::{self, BigQuery, ClickHouse},
    engine::Bounds,
};
use serde_json::{Value as Json, json};

use super::TestLogs;

/// Evaluates expressions in one statement over one line.
async fn check(logs: &TestLogs, dialect: Dialect, from: &str, cases: &[(&str, Json)]) {
    let mut wrong = Vec::new();
    for (expression, expected) in cases {
        let sql = format!("select {expression} as x {from}");
        let found = match logs.query(dialect, &sql).await {
            Ok(answer) => {
                let mut rows = answer.rows;
                match rows.pop() {
                    Some(mut row) if rows.is_empty() => row.remove("x").unwrap_or_default(),
                    _ => json!("not one row"),
                }
            }
            Err(error) => json!(format!("{error:?}")),
        };
        if !equal(&found, expected) {
            wrong.push(format!(
                "{expression}\n    {found}\n    {expected} expected"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Compares values. Numbers are equal if they differ only by rounding.
fn equal(one: &Json, other: &Json) -> bool {
    match (one, other) {
        (Json::Array(one), Json::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| equal(one, other))
        }
        _ => match (one.as_f64(), other.as_f64()) {
            (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * other.abs().max(1.0),
            _ => one == other,
        },
    }
}

const ONE_LINE: &str = "from logs where id = 'edge-0001'";

#[tokio::test]
async fn clickhouse_conversions_and_numbers() {
    let logs = TestLogs::open(Bounds::default()).await;
    check(
        &logs,
        ClickHouse,
        ONE_LINE,
        &[
            ("toInt8OrZero('300')", json!(0)),
            ("toUInt8OrZero('-1')", json!(0)),
            ("toUInt8OrZero('255')", json!(255)),
            ("toInt16OrZero('-32768')", json!(-32768)),
            ("toInt32OrZero('2147483648')", json!(0)),
            ("toUInt64OrZero('-5')", json!(0)),
            ("toInt32OrZero('12.5')", json!(0)),
            ("toInt32OrZero('+5')", json!(5)),
            ("toInt32OrZero(' 12')", json!(0)),
            ("toInt32OrZero('12 ')", json!(0)),
            ("toInt32OrNull('0012')", json!(12)),
            ("toInt8OrNull('300')", Json::Null),
            ("toInt8(300)", json!(44)),
            ("toUInt8(-1)", json!(255)),
            ("toInt8('300')", json!(44)),
            ("toInt32(-2.7)", json!(-2)),
            ("round(2.5)", json!(2)),
            ("round(3.5)", json!(4)),
            ("round(-2.5)", json!(-2)),
            ("round(2.345, 2)", json!(2.35)),
            ("round(1234, -2)", json!(1200)),
            ("round(1250, -2)", json!(1300)),
            ("round(25.5, -1)", json!(30)),
            ("round(0.15, 1)", json!(0.2)),
            ("intDiv(-7, 2)", json!(-3)),
            ("-7 % 3", json!(-1)),
            ("7.5 % 2", json!(1.5)),
            ("pow(2, 3)", json!(8)),
            ("greatest(1, 2.5)", json!(2.5)),
            ("least('a', 'b')", json!("a")),
            ("pow(0, -2)", Json::Null),
            ("1 / pow(0, -2)", json!(0)),
            ("pow(2, 0.5)", json!(std::f64::consts::SQRT_2)),
            (
                "toUnixTimestamp(fromUnixTimestamp(9000000000))",
                json!(4_294_967_295_i64),
            ),
            (
                "toUnixTimestamp64Micro(fromUnixTimestamp64Micro(9223372036854775807))",
                json!(253_402_300_799_999_999_i64),
            ),
            ("toString(1.5)", json!("1.5")),
            ("toString(1.0)", json!("1")),
            ("toString(true)", json!("true")),
            ("assumeNotNull(5)", json!(5)),
            ("sqrt(-1)", Json::Null),
            ("toFloat32OrNull('2147483648')", json!(2_147_483_600)),
            ("1 / 3", json!(0.333_333_333_333_333_3)),
        ],
    )
    .await;
}

#[tokio::test]
async fn clickhouse_texts_are_bytes() {
    let logs = TestLogs::open(Bounds::default()).await;
    check(
        &logs,
        ClickHouse,
        ONE_LINE,
        &[
            ("substring('äöü', 1, 2)", json!("ä")),
            ("substring('äöü', 1, 1)", json!("\u{fffd}")),
            ("substring('hello', 0)", json!("")),
            ("substring('hello', -3)", json!("llo")),
            ("substring('hello', -3, 2)", json!("ll")),
            ("substring('hello', 2, -1)", json!("ell")),
            ("substring('hello', 10)", json!("")),
            ("substringUTF8('äöü', 2, 1)", json!("ö")),
            ("substringUTF8('äöü', -2)", json!("öü")),
            ("left('äöü', 2)", json!("ä")),
            ("left('logs', -2)", json!("lo")),
            ("right('äöü', 2)", json!("ü")),
            ("right('hello', -2)", json!("llo")),
            ("leftUTF8('äöü', 2)", json!("äö")),
            ("upper('äb')", json!("äB")),
            ("lower('ÄB')", json!("Äb")),
            ("upperUTF8('äb')", json!("ÄB")),
            ("position('äöü', 'ö')", json!(3)),
            ("position('abcabc', 'c', 4)", json!(6)),
            ("position('abc', '')", json!(1)),
            ("positionUTF8('äöü', 'ö')", json!(2)),
            ("positionCaseInsensitive('ÄB', 'äb')", json!(0)),
            ("positionCaseInsensitive('xAB', 'ab')", json!(2)),
            ("positionCaseInsensitiveUTF8('ÄB', 'äb')", json!(1)),
            ("length('äb')", json!(3)),
            ("lengthUTF8('äb')", json!(2)),
            ("trimLeft('  a ')", json!("a ")),
            ("trimRight(' a ')", json!(" a")),
            ("extractAll('a1b22', '\\\\d+')", json!(["1", "22"])),
            ("extractAll('a1b22', '([a-z])(\\\\d+)')", json!(["a", "b"])),
            ("extractAll('abc', '\\\\d')", json!([])),
            ("replaceRegexpOne('a1b2', '\\\\d', 'x')", json!("axb2")),
            (
                "replaceRegexpOne('hello', '(h)(e)', '\\\\2\\\\1\\\\0')",
                json!("ehhello"),
            ),
            ("replaceRegexpAll('abc', '', 'x')", json!("abc")),
            ("match('a\nb', 'a.b')", json!(true)),
            ("replaceAll('aaa', 'a', 'b')", json!("bbb")),
            ("replaceRegexpAll('baaac', 'a*', '-')", json!("-b--c-")),
            ("extractAll('1ab', '([a-z]*)')", json!([])),
            ("extractAll('a,b', '[^,]*')", json!(["a"])),
            ("'a\\\\b' like 'a\\\\b'", json!(true)),
            ("like('a%b', concat('a\\\\', '%b'))", json!(true)),
            (
                "splitByString('', 'ä1')",
                json!(["\u{fffd}", "\u{fffd}", "1"]),
            ),
            ("hasToken('foo bar_baz', 'bar')", json!(true)),
        ],
    )
    .await;
}

#[tokio::test]
async fn clickhouse_urls_and_json() {
    let logs = TestLogs::open(Bounds::default()).await;
    check(
        &logs,
        ClickHouse,
        ONE_LINE,
        &[
            ("path('https://a.b/c/d?x=1#f')", json!("/c/d")),
            ("path('abc')", json!("")),
            ("domain('https://u@www.a.b:80/c')", json!("www.a.b")),
            ("domain('https://u:p@a.b/c')", json!("")),
            ("domain('localhost')", json!("")),
            ("domainWithoutWWW('https://www.a.b/c')", json!("a.b")),
            ("extractURLParameter('/c?x=%20a&y=2#f', 'y')", json!("2")),
            ("extractURLParameter('/c?ax=1', 'x')", json!("")),
            (
                "cutQueryString('https://a.b/c?x=1#f')",
                json!("https://a.b/c#f"),
            ),
            ("queryString('https://a.b/c?x=1#f')", json!("x=1")),
            ("decodeURLComponent('a%20b%2')", json!("a b%2")),
            (
                "JSONExtractString('{\"a\":{\"b\":[\"x\",5]}}', 'a', 'b', 1)",
                json!("x"),
            ),
            ("JSONExtractString('{\"a\":5}', 'a')", json!("5")),
            ("JSONExtractString('{\"a\":null}', 'a')", json!("")),
            (
                "JSONExtractString('{\"a\":{\"b\":1}}', 'a')",
                json!("{\"b\":1}"),
            ),
            ("JSONExtractString('\"x\"')", json!("x")),
            ("JSONExtractInt('{\"a\":\"5\"}', 'a')", json!(5)),
            ("JSONExtractInt('{\"a\":5.7}', 'a')", json!(5)),
            ("JSONExtractInt('{\"a\":[1,2]}', 'a', -1)", json!(2)),
            ("JSONExtractUInt('{\"a\":-5}', 'a')", json!(0)),
            ("JSONExtractFloat('{\"a\":\"5\"}', 'a')", json!(5)),
            ("JSONExtractBool('{\"a\":1}', 'a')", json!(true)),
            ("JSONExtractKeys('{\"z\":1,\"b\":2}')", json!(["z", "b"])),
            (
                "JSONExtractRaw('{\"a\": { \"z\" : 1, \"b\":\"x\" }}', 'a')",
                json!("{\"z\":1,\"b\":\"x\"}"),
            ),
            ("JSONExtractRaw('{\"c\":\"x\"}', 'c')", json!("\"x\"")),
            ("JSONExtractRaw('{\"c\":null}', 'd')", json!("")),
            ("JSONHas('{\"a\":null}', 'a')", json!(true)),
            ("JSONLength('{\"a\":[1,2]}', 'a')", json!(2)),
            ("JSON_VALUE('{\"a\":{\"b\":1}}', '$.a.b')", json!("1")),
            ("JSON_VALUE('{\"a\":{\"b\":1}}', '$.a')", json!("")),
            ("JSON_VALUE('{\"a\":[1,2]}', '$.a[1]')", json!("2")),
            ("isValidJSON('1')", json!(true)),
            ("isValidJSON('x')", json!(false)),
        ],
    )
    .await;
}

#[tokio::test]
async fn clickhouse_arrays_and_tuples() {
    let logs = TestLogs::open(Bounds::default()).await;
    check(
        &logs,
        ClickHouse,
        ONE_LINE,
        &[
            ("length(splitByChar(',', 'a,b,c'))", json!(3)),
            ("empty(splitByChar(',', 'a,b,c'))", json!(false)),
            ("notEmpty(mapKeys(log_attributes))", json!(true)),
            ("empty(extractAll('a', '1'))", json!(true)),
            ("length([1, 2])", json!(2)),
            ("arraySort([3, 1, 2])", json!([1, 2, 3])),
            ("arrayReverseSort([3, 1, 2])", json!([3, 2, 1])),
            ("arrayStringConcat(['a', 'b'], ',')", json!("a,b")),
            ("arrayStringConcat(['a', 'b'])", json!("ab")),
            ("arrayMap(x -> x * 2, [1, 2])", json!([2, 4])),
            (
                "arrayMap(x -> upper(x), splitByChar(',', 'a,b'))",
                json!(["A", "B"]),
            ),
            ("arrayMap(x -> concat(x, id), ['a'])", json!(["aedge-0001"])),
            ("arrayFilter(x -> x > 1, [1, 2])", json!([2])),
            (
                "arrayFilter(x -> notEmpty(x), splitByChar('/', '/a/b'))",
                json!(["a", "b"]),
            ),
            ("arrayCount(x -> x > 1, [1, 2, 3])", json!(2)),
            ("arrayExists(x -> x = 1, [1])", json!(true)),
            ("arrayDistinct(['a', 'a'])", json!(["a"])),
            ("indexOf([1, 2], 2)", json!(2)),
            ("arrayElement([1, 2], -1)", json!(2)),
            ("[1, 2][5]", json!(0)),
            ("splitByChar(',', 'a,b')[2]", json!("b")),
            ("splitByChar(',', 'a,b')[5]", json!("")),
            ("has(splitByChar(',', 'a,b'), 'a')", json!(true)),
            ("hasAny([1], [1, 2])", json!(true)),
            ("tuple(1, 'a')", json!([1, "a"])),
            ("(1, 'a')", json!([1, "a"])),
            ("tupleElement((1, 'a'), 2)", json!("a")),
            ("(1, 'a').1", json!(1)),
            ("splitByChar(',', '')", json!([""])),
        ],
    )
    .await;
}

#[tokio::test]
async fn clickhouse_times() {
    let logs = TestLogs::open(Bounds::default()).await;
    let at = "toDateTime('2026-11-03 04:05:06')";
    let format = |specifier: &str| format!("formatDateTime({at}, '{specifier}')");
    for (specifiers, expected) in [
        ("%M|%i|%m|%b|%a|%W", "November|05|11|Nov|Tue|Tuesday"),
        ("%w|%y|%C|%D|%e|%F", "2|26|20|11/03/26|3|2026-11-03"),
        ("%h|%I|%j|%l|%p|%r|%R", "04|04|307|04|AM|04:05 AM|04:05"),
        (
            "%s|%S|%T|%u|%V|%z|%G|%g|%%",
            "06|06|04:05:06|2|45|+0000|2026|26|%",
        ),
    ] {
        check(
            &logs,
            ClickHouse,
            ONE_LINE,
            &[(&format(specifiers), json!(expected))],
        )
        .await;
    }
    let at = "toDateTime('2026-11-20 10:20:30')";
    let zoned = |function: &str| format!("{function}({at}, 'Asia/Kolkata')");
    check(
        &logs,
        ClickHouse,
        ONE_LINE,
        &[
            (&zoned("toStartOfHour"), json!("2026-11-20T15:00:00")),
            (&zoned("toHour"), json!(15)),
            (
                &format!("formatDateTime({at}, '%F %T', 'Asia/Kolkata')"),
                json!("2026-11-20 15:50:30"),
            ),
            (
                "toDate(toDateTime('2026-11-20 23:20:30'), 'Asia/Kolkata')",
                json!("2026-11-21"),
            ),
            (
                &format!("toStartOfHour({at}, 'UTC')"),
                json!("2026-11-20T10:00:00"),
            ),
            ("now('UTC')", json!("2026-11-20T12:00:00")),
            (&format!("addHours({at}, 2)"), json!("2026-11-20T12:20:30")),
            (
                &format!("subtractHours({at}, 2)"),
                json!("2026-11-20T08:20:30"),
            ),
            (&format!("addDays({at}, -1)"), json!("2026-11-19T10:20:30")),
            (
                &format!("addMinutes({at}, length('ab'))"),
                json!("2026-11-20T10:22:30"),
            ),
            ("subtractDays(toDate('2026-11-20'), 2)", json!("2026-11-18")),
            ("addMonths(toDate('2026-01-31'), 1)", json!("2026-02-28")),
            ("toDayOfWeek(toDate('2026-11-22'))", json!(7)),
            ("toYYYYMMDD(toDate('2026-11-22'))", json!(20_261_122)),
            ("toYYYYMM(toDate('2026-11-22'))", json!(202_611)),
            (
                &format!("{at} + toIntervalHour(1)"),
                json!("2026-11-20T11:20:30"),
            ),
            (
                "dateDiff('month', toDate('2026-01-31'), toDate('2026-02-01'))",
                json!(1),
            ),
        ],
    )
    .await;
    let text = logs
        .rejection(
            ClickHouse,
            "select toHour(timestamp, 'Mars/Base') as h from logs",
        )
        .await;
    assert_eq!(text, "Unknown time zone Mars/Base");
}

#[tokio::test]
async fn clickhouse_aggregates() {
    let logs = TestLogs::open(Bounds::default()).await;
    let numbers = "from (select toInt64OrZero(splitByChar('-', id)[2]) as n, id from logs where \
                   source = 'edge_logs' and id <= 'edge-0009')";
    check(
        &logs,
        ClickHouse,
        numbers,
        &[
            ("quantile(0.5)(n)", json!(4.5)),
            ("quantile(0.95)(n)", json!(8.55)),
            ("quantiles(0.1, 0.9)(n)", json!([0.9, 8.1])),
            ("quantileExact(0.5)(n)", json!(5)),
            ("median(n)", json!(4.5)),
            ("quantileIf(0.5)(n, n > 3)", json!(6.5)),
            ("length(groupArray(3)(n))", json!(3)),
            ("length(groupUniqArray(2)(n % 4))", json!(2)),
            ("arraySort(groupUniqArray(n % 4))", json!([0, 1, 2, 3])),
            ("length(groupArray(id))", json!(10)),
            ("arraySort(topK(2)(n % 4))", json!([0, 1])),
            ("topK(1)(intDiv(n + 8, 10))", json!([1])),
            ("minIf(n, n > 100)", json!(0)),
            ("maxIf(id, n > 100)", json!("")),
            ("anyIf(id, n > 100)", json!("")),
            ("quantileIf(0.5)(n, n > 100)", Json::Null),
            ("groupArrayIf(n, n > 100)", json!([])),
            ("maxIf(toInt64OrNull('x'), 1)", Json::Null),
        ],
    )
    .await;
    let rows = logs
        .rows(
            ClickHouse,
            &format!(
                "select n, lagInFrame(n) over (order by n) as a, lagInFrame(id, 1, 'none') over \
                 (order by n) as b, lead(n, 1, 7) over (order by n desc) as c {numbers} order by n \
                 limit 2"
            ),
        )
        .await;
    assert_eq!(
        json!(rows),
        json!([[0, 0, "none", 7], [1, 0, "edge-0000", 0]])
    );
}

#[tokio::test]
async fn bigquery_functions() {
    let logs = TestLogs::open(Bounds::default()).await;
    let metadata = "metadata[offset(0)].request[offset(0)]";
    check(
        &logs,
        BigQuery,
        "from edge_logs where id = 'edge-0001'",
        &[
            (&format!("{metadata}.method"), json!("POST")),
            (
                &format!("{metadata}.headers[safe_offset(0)].host"),
                json!("mine.example"),
            ),
            (
                "edge_logs.metadata[ordinal(1)].response[offset(0)].status_code",
                json!(201),
            ),
            (
                "json_extract('{\"a\":{\"b\":\"x\"}}', '$.a')",
                json!("{\"b\":\"x\"}"),
            ),
            ("json_query('{\"a\":\"x\"}', '$.a')", json!("\"x\"")),
            (
                "json_value('{\"a\":[1,{\"b\":2}]}', '$.a[1].b')",
                json!("2"),
            ),
            ("json_value('{\"a\":[1]}', '$.a')", Json::Null),
            ("to_json_string(id)", json!("\"edge-0001\"")),
            ("to_json_string(5)", json!("5")),
            ("regexp_extract_all('a1b22', r'[0-9]+')", json!(["1", "22"])),
            ("array_length(split('a,b', ','))", json!(2)),
            (
                "datetime_sub(datetime '2026-11-20 10:00:00', interval 2 hour)",
                json!("2026-11-20T08:00:00.000000"),
            ),
            (
                "datetime(timestamp_add(timestamp '2026-11-20 10:00:00', interval -2 hour))",
                json!("2026-11-20T08:00:00.000000"),
            ),
            ("round(2.5)", json!(3)),
            ("upper('äb')", json!("ÄB")),
            ("substr('äöü', 2, 1)", json!("ö")),
        ],
    )
    .await;
    let numbers = "from (select cast(split(id, '-')[offset(1)] as int64) as n, id from edge_logs \
                   where id <= 'edge-0009')";
    check(
        &logs,
        BigQuery,
        numbers,
        &[
            ("approx_quantiles(n, 2)", json!([0, 4, 9])),
            ("approx_quantiles(n, 100)[offset(90)]", json!(8)),
            ("approx_quantiles(n, 100)[ordinal(101)]", json!(9)),
            ("array_agg(n order by n desc limit 3)", json!([9, 8, 7])),
            (
                "array_agg(id order by mod(n, 2), n limit 2)",
                json!(["edge-0000", "edge-0002"]),
            ),
            (
                "array_agg(distinct mod(n, 3) order by mod(n, 3))",
                json!([0, 1, 2]),
            ),
            (
                "string_agg(cast(n as string), '; ' order by n limit 2)",
                json!("0; 1"),
            ),
            ("stddev(n)", json!(3.027_650_354_097_491_7)),
            ("logical_or(n > 8)", json!(true)),
            ("logical_and(n > 8)", json!(false)),
        ],
    )
    .await;
}
