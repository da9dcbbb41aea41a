//! Hostile statements are rejected, or return only lines of the own project within the limits.

use std::{fmt::Write as _, time::Duration};

use gantry_logs::{Dialect, QueryError, engine::Bounds};
use proptest::{
    prelude::{Strategy, any, prop},
    strategy::ValueTree as _,
    test_runner::TestRunner,
};

use super::TestLogs;

/// Statements that both dialects reject.
const REJECTED: &[&str] = &[
    "",
    " ",
    ";",
    "--",
    "/* select 1 */",
    "select",
    "select from logs",
    "explain select 1",
    "describe logs",
    "show tables",
    "set a = 1",
    "use other",
    "insert into logs values (1)",
    "insert into edge_logs select id from edge_logs",
    "update logs set id = 'a'",
    "delete from logs",
    "drop table logs",
    "truncate table logs",
    "alter table logs add column a int",
    "create table a as select 1",
    "create view v as select 1",
    "create external table t stored as parquet location '/etc'",
    "create function f() returns int",
    "create or replace table logs as select 1",
    "copy logs to '/tmp/a'",
    "copy (select 1) to 's3://a/b' stored as csv",
    "attach database a",
    "grant select on logs to a",
    "call f()",
    "begin",
    "commit",
    "prepare a as select 1",
    "execute a",
    "kill query",
    "optimize table logs",
    "system shutdown",
    "load data infile 'a'",
    "merge into logs using logs on true when matched then delete",
    "with a as (insert into logs values (1)) select 1",
    "values (1)",
    "select 1; drop table logs",
    "select 1;;drop table logs;",
    "select 1 /* ; */ ; select 2",
    "select 1 into outfile '/tmp/a'",
    "select 1 into t from logs",
    "select 1 format Null",
    "select id from logs for update",
    "select a from file('/etc/passwd')",
    "select a from url('http://169.254.169.254/')",
    "select a from s3('https://a/b')",
    "select a from remote('a', 'b', 'c')",
    "select a from read_parquet('/etc/passwd')",
    "select a from generate_series(1, 1000000000)",
    "select a from range(1000000000)",
    "select a from numbers(1000000000)",
    "select value from system.query_log",
    "select name from system.tables",
    "select a from '/etc/passwd'",
    "select a from \"/etc/passwd.parquet\"",
    "select a from information_schema.tables",
    "select a from INFORMATION_SCHEMA.COLUMNS",
    "select a from pg_catalog.pg_class",
    "select a from datafusion.public.logs",
    "select a from public.logs",
    "select a from default.logs",
    "select a from other.edge_logs",
    "select a from project.dataset.edge_logs",
    "select a from lines",
    "select attributes from logs",
    "select `@request.path` from logs",
    "select t1.id from logs",
    "select a from table(logs)",
    "select a from lateral (select 1)",
    "with recursive a as (select 1 as n union all select n + 1 from a) select n from a",
    "with a as (select n from a) select n from a",
    "select version()",
    "select hostName()",
    "select currentUser()",
    "select getSetting('a')",
    "select sleep(3)",
    "select pg_sleep(3)",
    "select load_file('/etc/passwd')",
    "select repeat('a', 2000000000)",
    "select lpad('a', 2000000000, 'b')",
    "select space(2000000000)",
    "select arrayResize([1], 1000000000)",
    "select range(1, 1000000000)",
    "select generate_array(1, 1000000000)",
    "select array_repeat('a', 1000000000)",
    "select arrow_cast('a', 'Utf8')",
    "select attribute(log_attributes, 'a') from logs",
    "select nested_attributes('') from logs",
    "select json_text('a', 'b')",
    "select regex_match('a', 'b')",
    "select join_texts('a', 'b')",
    "select to_char(now(), 'a')",
    "select make_array(1)",
    "select unnest(make_array(1))",
    "select arrow_typeof(1)",
    "select evil.count()",
    "select `count`.`a`()",
    "select count(*) filter (where true) from logs",
    "select * from logs",
    "select logs.* from logs",
    "select * except (id) from logs",
    "select a.* from (select id from logs) as a",
    "select count(logs.*) from logs",
    "select id from logs limit -1",
    "select id from logs limit id",
    "select id from logs limit 99999999999999999999",
    "select id from logs limit (select 1)",
    "select id from logs, lateral (select 1)",
    "select id from logs natural join logs",
    "select id from logs join logs using (id)",
    "select id from logs full join logs on true",
    "select id from logs qualify",
    "select top 5 id from logs",
    "select id from logs tablesample (10)",
    "select id from logs as of timestamp '2020-01-01'",
    "select id from logs pivot (count(id) for source in ('a'))",
    "from logs |> select id",
    "select 1 |> where true",
    "select @@version",
    "select ?",
    "select $1",
    "select :a",
    "select {fn now()}",
    "select x'00'",
    "select U&'\\0061'",
    "select 1 as a, 2 as a",
    "select ((((((((((",
    "select '",
    "select \"",
    "select `",
    "select /*",
    "select 'a\\",
    "select \u{0}",
    "select \u{202e}1",
    "select id from lоgs",
    "select ｉd from logs",
    "ѕelect 1",
];

/// Statements that may be rejected or return at most two rows of the own project.
const TOLERATED: &[&str] = &[
    "select 'a'';drop table logs;--' as a",
    "select 'a\\'; select 1' as a",
    "select '\" from secret' as \"a\"\"b\"",
    "select 1 as \"t1\"",
    "select 1 -- ; select 2",
    "select 1 /* /* */ */",
    "select '\u{0}' as a",
    "select '\u{1f600}' as a",
    "select 9223372036854775807 + 1 as a",
    "select -9223372036854775808 - 1 as a",
    "select 9223372036854775807 * 9223372036854775807 as a",
    "select 1e308 * 1e308 as a",
    "select cast('99999999999999999999' as int64) as a",
    "select cast(1e300 as int64) as a",
    "select cast('no' as timestamp) as a",
    "select cast('0001-01-01' as timestamp) as a",
    "select cast('9999-12-31' as datetime) as a",
    "select 1 % 0 as a",
    "select 18446744073709551615 as a",
    "select 1e400 as a",
    "select length('a') / 0 as a",
    "select interval 1000000 year as a",
    "select interval 99999999999999 day as a",
    "select 0x7fffffff as a",
    "select 1_000 as a",
    "select true and null or not false as a",
    "select case when true then 1 else 'a' end as a",
    "select coalesce(1, 'a') as a",
    "select 'a' + 1 as a",
    "select not 'a' as a",
    "select -'a' as a",
    "select 'a' in (1, 2) as a",
    "select null in (null) as a",
    "select exists (select 1) as a",
    "select (select 1 union all select 2) as a",
    "select max(max(1)) as a",
    "select count(count()) as a",
    "select sum(1) over () as a",
    "select 1 group by 1 having 1",
    "select 1 order by 2",
    "select\u{a0}1",
    "select \"@request.path\" as a from logs limit 1",
];

#[tokio::test]
async fn hostile_statements_are_rejected() {
    let logs = TestLogs::open(Bounds::default()).await;
    assert!(REJECTED.len() >= 80);
    let mut failures = Vec::new();
    for dialect in [Dialect::BigQuery, Dialect::ClickHouse] {
        for sql in REJECTED {
            let sql = if dialect == Dialect::BigQuery {
                sql.replace("from logs", "from edge_logs")
            } else {
                (*sql).to_owned()
            };
            match logs.query(dialect, &sql).await {
                Err(QueryError::Invalid(text)) if !text.is_empty() && text.len() < 600 => {}
                other => failures.push(
                    format!("{dialect:?} {sql}: {other:?}")
                        .chars()
                        .take(400)
                        .collect::<String>(),
                ),
            }
        }
        for sql in TOLERATED {
            match logs.query(dialect, sql).await {
                Ok(answer)
                    if answer.rows.len() <= 2
                        && !format!("{answer:?}").contains("another project") => {}
                Err(QueryError::Invalid(_)) => {}
                other => failures.push(
                    format!("{dialect:?} {sql}: {other:?}")
                        .chars()
                        .take(400)
                        .collect(),
                ),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Statements of extreme size or nesting, each with a label.
fn oversized_statements() -> Vec<(&'static str, String)> {
    let nested = |open: &str, inner: &str, close: &str, times: usize| {
        format!("{}{inner}{}", open.repeat(times), close.repeat(times))
    };
    let chain = |first: &str, next: &str, times: usize| format!("{first}{}", next.repeat(times));
    let aliases = |step: &dyn Fn(usize) -> String, times: usize| {
        (1..times).fold(String::new(), |mut all, n| {
            write!(all, ", {}", step(n)).unwrap();
            all
        })
    };
    let tables = (1..40).fold("with c0 as (select id from logs)".to_owned(), |all, n| {
        let before = n - 1;
        format!("{all}, c{n} as (select a.id as id from c{before} as a cross join c{before} as b)")
    });
    let texts = (0..12).fold(
        "(select event_message as m from logs)".to_owned(),
        |all, _| {
            format!(
                "(select concat(m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m, m) as m \
            from {all} as a)"
            )
        },
    );
    let replaced = (0..8).fold(
        "(select event_message as m from logs)".to_owned(),
        |all, _| {
            format!(
                "(select replaceRegexpAll(m, '', \
            'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa') as m from {all} as a)"
            )
        },
    );
    let split = (0..8).fold(
        "(select event_message as m from logs)".to_owned(),
        |all, _| {
            format!(
                "(select arrayJoin(splitByChar('', concat(m, m, m, m, m, m, m, m))) as m from \
            {all} as a)"
            )
        },
    );
    vec![
        ("parentheses", nested("select \
            (", "1", ")", 1).replace("(1)", &nested("(", "1", ")", 30_000))),
        ("calls", format!("select {} as a", nested("lower(", "'a'", ")", 7_000))),
        ("negations", format!("select {} as a", chain("", "not ", 10_000) + "true")),
        ("signs", format!("select {}1 as a", chain("", "- ", 20_000))),
        ("cases", format!("select {} as a", nested("case when true then ", "1", " end", 2_000))),
        ("queries", nested("select id from (", "select id from logs", ")", 3_000)),
        ("lists", format!("select {}{} as a", "[".repeat(20_000), "]".repeat(20_000))),
        ("subscripts", format!("select a{} as a", "[1]".repeat(20_000))),
        ("sums", format!("select {} as a", chain("1", " + 1", 15_000))),
        ("conditions", format!("select id from logs where {}", chain("1 = 1", " and 1 = \
            1", 6_000))),
        ("turns", format!("select id from logs where {}", chain("1", " and 1 or 1", 5_000))),
        ("unions", chain("select id from logs", " union all select id from logs", 2_000)),
        ("joins", chain("select 1 as a from logs as b", " cross join logs", 4_000)),
        ("columns", format!("select {}", (0..6_000).map(|n| format!("{n} as \
            a{n}")).collect::<Vec<_>>().join(", "))),
        ("members", format!("select 1 in ({}1) as a", "1, ".repeat(20_000))),
        ("aliases", format!("select 'a' as a0{} from logs", aliases(&|n| format!("concat(a{0}, \
            a{0}) as a{n}", n - 1), 100))),
        ("circles", "select b as a, a as b, a + b as c from logs".into()),
        ("tables", format!("{tables} select id from c39")),
        ("texts", format!("select m from {texts} as a")),
        ("replacements", format!("select m from {replaced} as a")),
        ("items", format!("select m from {split} as a")),
        ("patterns", r"select count() as n from logs where match(event_message, '((((a{100}){100}){100}){100})')".into()),
        ("repetitions", r"select count() as n from logs where match(event_message, '(x+x+)+y')".into()),
        ("everything", "select groupArray(a.log_attributes) as a from logs as a cross join logs \
            as b cross join logs as c".into()),
        ("bytes", format!("select '{}' as a", "a".repeat(10 << 20))),
        ("comments", format!("select 1 as a {}", "/*".repeat(30_000))),
        ("quotes", format!("select {}", "''".repeat(30_000))),
        ("dots", format!("select {} from logs", chain("a", ".a", 20_000))),
    ]
}

#[tokio::test]
async fn oversized_statement_is_rejected_within_the_limits() {
    let bounds = Bounds {
        memory_query: 32 << 20,
        timeout: Duration::from_secs(20),
        ..Bounds::default()
    };
    let logs = TestLogs::open(bounds).await;
    let mut failures = Vec::new();
    for (what, sql) in oversized_statements() {
        for dialect in [Dialect::ClickHouse, Dialect::BigQuery] {
            match logs.query(dialect, &sql).await {
                Ok(_) | Err(QueryError::Invalid(_) | QueryError::TimedOut) => {}
                other => failures.push(
                    format!("{dialect:?} {what}: {other:?}")
                        .chars()
                        .take(400)
                        .collect::<String>(),
                ),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The filter is evaluated in a file scan or in a memory scan, depending on timing.
#[tokio::test]
async fn failing_filter_is_an_invalid_statement() {
    let logs = TestLogs::open(Bounds::default()).await;
    for (condition, reason) in [
        (
            "match(event_message, '((((a{100}){100}){100}){100})')",
            "Invalid regular expression",
        ),
        ("intDiv(1, length(id) - length(id)) = 1", "Division by zero"),
    ] {
        for _ in 0..12 {
            let answer = logs
                .query(
                    Dialect::ClickHouse,
                    &format!("select count() as n from logs where {condition}"),
                )
                .await;
            assert!(
                matches!(&answer, Err(QueryError::Invalid(text)) if text.contains(reason)),
                "{condition}: {answer:?}"
            );
        }
    }
}

/// Random sequences of tokens never cause an internal error.
#[tokio::test]
async fn random_tokens_never_cause_an_internal_error() {
    const WORDS: &[&str] = &[
        "select",
        "from",
        "logs",
        "edge_logs",
        "where",
        "group by",
        "order by",
        "limit",
        "having",
        "union all",
        "with",
        "as",
        "a",
        "b",
        "(",
        ")",
        ",",
        ".",
        "*",
        "1",
        "0",
        "2.5",
        "'x'",
        "\"y\"",
        "`z`",
        "and",
        "or",
        "not",
        "in",
        "is null",
        "between",
        "like",
        "case",
        "when",
        "then",
        "else",
        "end",
        "cast",
        "interval",
        "day",
        "cross join",
        "unnest",
        "metadata",
        "on",
        "true",
        "null",
        "count",
        "count()",
        "sum",
        "toStartOfHour",
        "timestamp",
        "id",
        "log_attributes",
        "['k']",
        "[",
        "]",
        "=",
        "<",
        "+",
        "-",
        "/",
        "%",
        "||",
        ";",
        "--",
        "/*",
        "*/",
        "distinct",
        "over",
        "partition by",
        "quantile(0.5)",
        "arrayJoin",
        "if",
        "multiIf",
        "extract",
        "hour",
        "r'",
        "::",
        "@",
        "\\",
        "\u{1f600}",
    ];
    let logs = TestLogs::open(Bounds::default()).await;
    let mut runner = TestRunner::deterministic();
    let words = prop::collection::vec((0..WORDS.len(), any::<bool>()), 1..40).prop_map(|words| {
        let started: String = words
            .iter()
            .flat_map(|(at, space)| [WORDS[*at], if *space { " " } else { "  " }])
            .collect();
        format!("select {started}")
    });
    for _ in 0..400 {
        let sql = words.new_tree(&mut runner).unwrap().current();
        for dialect in [Dialect::ClickHouse, Dialect::BigQuery] {
            let answer = logs.query(dialect, &sql).await;
            assert!(
                matches!(answer, Ok(_) | Err(QueryError::Invalid(_))),
                "{sql}\n{answer:?}"
            );
        }
    }
}
