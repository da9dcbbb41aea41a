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

fn nested(open: &str, inner: &str, close: &str, times: usize) -> String {
    format!("{}{inner}{}", open.repeat(times), close.repeat(times))
}

fn chain(first: &str, next: &str, times: usize) -> String {
    format!("{first}{}", next.repeat(times))
}

/// A select list in which each alias repeats the previous one twice.
fn doubling_aliases(times: usize) -> String {
    let mut list = String::from("'a' as a0");
    for n in 1..times {
        let previous = n - 1;
        write!(list, ", concat(a{previous}, a{previous}) as a{n}").unwrap();
    }
    list
}

/// Statements of extreme nesting, each with a label.
fn nested_statements() -> Vec<(&'static str, String)> {
    let parentheses = nested("(", "1", ")", 30_000);
    let calls = nested("lower(", "'a'", ")", 7_000);
    let negations = chain("", "not ", 10_000);
    let signs = chain("", "- ", 20_000);
    let cases = nested("case when true then ", "1", " end", 2_000);
    let queries = nested("select id from (", "select id from logs", ")", 3_000);
    let brackets = nested("[", "", "]", 20_000);
    let subscripts = chain("a", "[1]", 20_000);
    vec![
        ("parentheses", format!("select {parentheses}")),
        ("calls", format!("select {calls} as a")),
        ("negations", format!("select {negations}true as a")),
        ("signs", format!("select {signs}1 as a")),
        ("cases", format!("select {cases} as a")),
        ("queries", queries),
        ("lists", format!("select {brackets} as a")),
        ("subscripts", format!("select {subscripts} as a")),
    ]
}

/// Statements of extreme length, each with a label.
fn long_statements() -> Vec<(&'static str, String)> {
    let sums = chain("1", " + 1", 15_000);
    let conditions = chain("1 = 1", " and 1 = 1", 6_000);
    let alternating = chain("1", " and 1 or 1", 5_000);
    let unions = chain(
        "select id from logs",
        " union all select id from logs",
        2_000,
    );
    let joins = chain("select 1 as a from logs as b", " cross join logs", 4_000);
    let columns: Vec<_> = (0..6_000).map(|n| format!("{n} as a{n}")).collect();
    let members = "1, ".repeat(20_000);
    let bytes = "a".repeat(10 << 20);
    let dots = chain("a", ".a", 20_000);
    vec![
        ("sums", format!("select {sums} as a")),
        (
            "conditions",
            format!("select id from logs where {conditions}"),
        ),
        (
            "alternating",
            format!("select id from logs where {alternating}"),
        ),
        ("unions", unions),
        ("joins", joins),
        ("columns", format!("select {}", columns.join(", "))),
        ("members", format!("select 1 in ({members}1) as a")),
        ("bytes", format!("select '{bytes}' as a")),
        ("comments", format!("select 1 as a {}", "/*".repeat(30_000))),
        ("quotes", format!("select {}", "''".repeat(30_000))),
        ("dots", format!("select {dots} from logs")),
    ]
}

/// Short statements with huge results, each with a label.
fn expensive_statements() -> Vec<(&'static str, String)> {
    let mut tables = String::from("with c0 as (select id from logs)");
    for n in 1..40 {
        let previous = n - 1;
        write!(
            tables,
            ", c{n} as (select a.id as id from c{previous} as a cross join c{previous} as b)"
        )
        .unwrap();
    }
    let copies = ["m"; 20].join(", ");
    let texts = wrapped(12, &format!("concat({copies})"));
    let long = "a".repeat(61);
    let replacements = wrapped(8, &format!("replaceRegexpAll(m, '', '{long}')"));
    let items = wrapped(
        8,
        "arrayJoin(splitByChar('', concat(m, m, m, m, m, m, m, m)))",
    );
    let bounded = "match(event_message, '((((a{100}){100}){100}){100})')";
    let backtracking = "match(event_message, '(x+x+)+y')";
    let aliases = doubling_aliases(100);
    vec![
        ("aliases", format!("select {aliases} from logs")),
        (
            "circles",
            "select b as a, a as b, a + b as c from logs".into(),
        ),
        ("tables", format!("{tables} select id from c39")),
        ("texts", format!("select m from {texts} as a")),
        ("replacements", format!("select m from {replacements} as a")),
        ("items", format!("select m from {items} as a")),
        (
            "patterns",
            format!("select count() as n from logs where {bounded}"),
        ),
        (
            "backtracking",
            format!("select count() as n from logs where {backtracking}"),
        ),
        (
            "cross joins",
            "select groupArray(a.log_attributes) as a \
             from logs as a cross join logs as b cross join logs as c"
                .into(),
        ),
    ]
}

/// A subquery that applies an expression over `m` several times.
fn wrapped(times: usize, expression: &str) -> String {
    let mut query = String::from("(select event_message as m from logs)");
    for _ in 0..times {
        query = format!("(select {expression} as m from {query} as a)");
    }
    query
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
    let statements = [
        nested_statements(),
        long_statements(),
        expensive_statements(),
    ];
    for (label, sql) in statements.concat() {
        for dialect in [Dialect::ClickHouse, Dialect::BigQuery] {
            match logs.query(dialect, &sql).await {
                Ok(_) | Err(QueryError::Invalid(_) | QueryError::TimedOut) => {}
                other => failures.push(
                    format!("{dialect:?} {label}: {other:?}")
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

/// Tokens of both dialects.
#[rustfmt::skip]
const TOKENS: &[&str] = &[
    "select", "from", "logs", "edge_logs", "where", "group by", "order by", "limit", "having",
    "union all", "with", "as", "a", "b", "(", ")", ",", ".", "*", "1", "0", "2.5", "'x'", "\"y\"",
    "`z`", "and", "or", "not", "in", "is null", "between", "like", "case", "when", "then", "else",
    "end", "cast", "interval", "day", "cross join", "unnest", "metadata", "on", "true", "null",
    "count", "count()", "sum", "toStartOfHour", "timestamp", "id", "log_attributes", "['k']", "[",
    "]", "=", "<", "+", "-", "/", "%", "||", ";", "--", "/*", "*/", "distinct", "over",
    "partition by", "quantile(0.5)", "arrayJoin", "if", "multiIf", "extract", "hour", "r'", "::",
    "@", "\\", "\u{1f600}",
];

/// Random sequences of tokens never cause an internal error.
#[tokio::test]
async fn random_tokens_never_cause_an_internal_error() {
    let logs = TestLogs::open(Bounds::default()).await;
    let mut runner = TestRunner::deterministic();
    let words = prop::collection::vec((0..TOKENS.len(), any::<bool>()), 1..40).prop_map(|words| {
        let started: String = words
            .iter()
            .flat_map(|(at, space)| [TOKENS[*at], if *space { " " } else { "  " }])
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
