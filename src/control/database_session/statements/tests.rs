//! Tests of the statement scanner.

use proptest::prelude::*;

use super::*;

fn transactional(sql: &str) -> Result<Cow<'_, str>, Error> {
    TransactionScript::parse("a migration", "query", sql).map(|script| script.text())
}

#[test]
fn nested_comments_are_limited() {
    let nested = |n: usize, between: &str| format!("select {}1", format!("/*{between}").repeat(n));
    for fine in [
        nested(100, ""),
        nested(100, "-+"),
        nested(10_000, " "),
        nested(10_000, "a"),
        "/* -------- */".repeat(1000),
    ] {
        assert!(check_comment_nesting(&fine).is_ok(), "{}…", &fine[..20]);
    }
    for over in [nested(101, ""), nested(101, "-+"), nested(500_000, "*")] {
        assert!(check_comment_nesting(&over).is_err(), "{}…", &over[..20]);
    }
}

#[test]
fn command_outside_transactions_is_rejected_with_name_and_line() {
    for (sql, name, line) in [
        ("vacuum", "VACUUM", 1),
        ("select 1;\n VACUUM (full) t", "VACUUM", 2),
        (
            "create index concurrently on t (a)",
            "CREATE INDEX CONCURRENTLY",
            1,
        ),
        (
            "create unique index concurrently i on t (a)",
            "CREATE INDEX CONCURRENTLY",
            1,
        ),
        ("drop index concurrently i", "DROP INDEX CONCURRENTLY", 1),
        ("reindex table concurrently t", "REINDEX CONCURRENTLY", 1),
        ("reindex (concurrently) table t", "REINDEX CONCURRENTLY", 1),
        ("reindex database d", "REINDEX of more than one table", 1),
        (
            "begin; alter table a.t detach partition p concurrently; commit",
            "DETACH PARTITION CONCURRENTLY",
            1,
        ),
        ("create database d", "CREATE DATABASE", 1),
        ("drop database if exists d", "DROP DATABASE", 1),
        (
            "alter database \"d\" set tablespace t",
            "ALTER DATABASE SET TABLESPACE",
            1,
        ),
        ("alter system set work_mem = 1", "ALTER SYSTEM", 1),
        ("discard all", "DISCARD ALL", 1),
        ("cluster verbose", "CLUSTER of every table", 1),
    ] {
        let message = transactional(sql).expect_err(sql).message().into_owned();
        assert!(
            message.contains(&format!("does not run {name} (line {line}) in any")),
            "{sql}: {message}"
        );
    }
    for sql in [
        "create index i on t (a); drop index i; reindex table t; cluster t; cluster verbose t using i",
        "create table concurrently_made (vacuum int); alter table t add column concurrently int default 1",
        "alter database d set work_mem = 1; discard plans; refresh materialized view concurrently m",
        "select 'vacuum', $$;vacuum$$ -- ;vacuum",
    ] {
        assert!(transactional(sql).is_ok(), "{sql}");
    }
}

#[test]
fn text_without_transaction_control_is_unchanged() {
    for sql in [
        "",
        ";;",
        "-- commit;\ncreate table a (); /* begin; /* commit; */ end; */",
        "select 'a;commit;b', \"x\"\";commit;\", 'it''s;commit;'",
        "select e'\\';commit;', E'a'\n'\\';commit;'",
        "select e'a' -- note\n'\\';commit;'",
        "do $$ begin perform 1; end; $$; do $a$ begin null; $$;commit; end $a$",
        "create function f() returns int language plpgsql as $body$ begin return 1; end; $body$",
        "create or replace function f() returns int begin atomic select 1; select case when true then 1 end; end; select 1",
        "create procedure p() begin atomic end; select 1",
        "select 1 as commit; select a.commit; create table t (\"end\" int, start int)",
        "savepoint a; rollback to a; rollback to savepoint a; rollback work to a; release a",
        "set transaction read only; prepare commit as select 1; select a$b$ from c; select 1 as é$$",
        "select $1; select 1$;",
    ] {
        assert!(
            matches!(transactional(sql), Ok(Cow::Borrowed(same)) if same == sql),
            "{sql}"
        );
    }
}

#[test]
fn transaction_control_is_rejected_with_name_and_line() {
    for (sql, name, line) in [
        ("commit", "COMMIT", 1),
        ("select 1;\n/* x */ CoMMit", "COMMIT", 2),
        ("begin; select 1", "BEGIN", 1),
        ("select 1; end", "END", 1),
        ("abort", "ABORT", 1),
        ("rollback and chain", "ROLLBACK AND CHAIN", 1),
        (
            "start transaction read only",
            "START TRANSACTION READ ONLY",
            1,
        ),
        ("prepare transaction 'x'", "PREPARE TRANSACTION", 1),
        (
            "begin; commit; create table x(); begin; commit",
            "COMMIT",
            1,
        ),
        (
            "begin isolation level serializable; select 1; commit",
            "BEGIN ISOLATION LEVEL SERIALIZABLE",
            1,
        ),
        ("select 'a\\'; commit; --'", "COMMIT", 1),
        ("select e'a' 'b\\'; commit; --'", "COMMIT", 1),
        ("select $a$ $b$ $a$; commit", "COMMIT", 1),
        ("select a$b$; commit; select $b$", "COMMIT", 1),
        (
            "create function begin() returns int language sql return 1; commit",
            "COMMIT",
            1,
        ),
        (
            "create function f() returns int begin atomic select 1 as case; end; commit",
            "COMMIT",
            1,
        ),
        (
            "create function f() returns int begin atomic select 1; end; end",
            "END",
            1,
        ),
        ("/* /* */ commit; */ commit", "COMMIT", 1),
    ] {
        let message = transactional(sql).expect_err(sql).message().into_owned();
        assert!(
            message.contains(&format!("contain {name} (line {line})")),
            "{sql}: {message}"
        );
    }
}

#[test]
fn outer_begin_and_commit_are_blanked() {
    assert_eq!(
        transactional("-- one\nBegin /* é */;\nselect 1;\ncommit work;\n-- end").unwrap(),
        "-- one\n              \nselect 1;\n            \n-- end"
    );
    assert_eq!(
        transactional("start transaction; end").unwrap(),
        "                      "
    );
}

proptest! {
    #[test]
    fn arbitrary_text_is_read_completely(sql in r"(?s)[a'e$\\/*;\n\- é\x22]{0,40}") {
        if let Ok(text) = transactional(&sql) {
            prop_assert_eq!(text.chars().count(), sql.chars().count());
        }
    }
}
