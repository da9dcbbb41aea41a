//! Tests of the segments of migrations.

use proptest::prelude::*;

use super::*;

fn plan(sql: &str) -> Result<MigrationPlan<'_>, Error> {
    MigrationPlan::parse(sql, &SegmentCuts::default())
}

/// Returns the segments as text: `t` a transaction, `b` one that the text begins, `r` one that it
/// rolls back, `s` a single statement.
fn shape(sql: &str) -> Vec<String> {
    let plan = plan(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let shapes = plan.segments.iter().map(|segment| {
        let kind = match &segment.kind {
            SegmentKind::Implicit => "t",
            SegmentKind::Explicit { rolled_back, .. } => ["b", "r"][usize::from(*rolled_back)],
            SegmentKind::Standalone(_) => "s",
        };
        let texts = segment
            .statements
            .iter()
            .map(|range| sql[range.clone()].trim_end_matches(';'));
        format!("{kind}: {}", texts.collect::<Vec<_>>().join(" | "))
    });
    shapes.collect()
}

#[test]
fn text_is_split_into_segments() {
    for (sql, segments) in [
        ("", &[][..]),
        ("-- nothing\n;;", &[]),
        (
            "create table a (); select 1",
            &["t: create table a () | select 1"],
        ),
        ("begin; select 1; commit", &["b: select 1"]),
        (
            "begin; select 1; commit; begin; select 2; end",
            &["b: select 1", "b: select 2"],
        ),
        (
            "select 1; begin; select 2; rollback; select 3",
            &["t: select 1", "r: select 2", "t: select 3"],
        ),
        (
            "select 1; commit; select 2; commit",
            &["t: select 1", "t: select 2"],
        ),
        (
            "begin; select 1; commit and chain; select 2; abort",
            &["b: select 1", "r: select 2"],
        ),
        (
            "begin; commit; start transaction; end; select 1",
            &["t: select 1"],
        ),
        (
            "select 1; vacuum; select 2;",
            &["t: select 1", "s: vacuum", "t: select 2"],
        ),
        (
            "create table a (); create index concurrently on a ((1)); drop index concurrently b",
            &[
                "t: create table a ()",
                "s: create index concurrently on a ((1))",
                "s: drop index concurrently b",
            ],
        ),
        (
            "savepoint a; select 1; rollback to a; release a",
            &["t: savepoint a | select 1 | rollback to a | release a"],
        ),
        (
            "do $$ begin commit; end $$; select 'a; vacuum'",
            &["t: do $$ begin commit; end $$ | select 'a; vacuum'"],
        ),
        (
            "create function f() returns int begin atomic select 1; end; vacuum; select 2",
            &[
                "t: create function f() returns int begin atomic select 1; end",
                "s: vacuum",
                "t: select 2",
            ],
        ),
        (
            "select U&'\\0061;' , x'1f', N'a;b'; vacuum",
            &["t: select U&'\\0061;' , x'1f', N'a;b'", "s: vacuum"],
        ),
        (
            "/* /* ; */ vacuum; */ select $a$;$a$; vacuum a",
            &["t: select $a$;$a$", "s: vacuum a"],
        ),
    ] {
        assert_eq!(shape(sql), segments, "{sql}");
    }
}

#[test]
fn whole_text_is_one_transaction_as_before() {
    for sql in [
        "",
        "select 1; select 2",
        "begin; select 1; commit;",
        "-- a\nstart transaction; select 1; end",
    ] {
        assert!(plan(sql).unwrap().whole().is_some(), "{sql}");
    }
    for sql in [
        "vacuum",
        "begin; select 1; rollback",
        "begin isolation level serializable; select 1; commit",
        "begin; select 1; commit; select 2",
        "select 1; commit",
    ] {
        assert!(plan(sql).unwrap().whole().is_none(), "{sql}");
    }
}

#[test]
fn unsupported_text_is_rejected_with_line() {
    for (sql, error) in [
        (
            "select 1;\n\\connect other\nselect 2",
            "line 2: \\connect other select 2 is a command of psql",
        ),
        ("select 1 \\gexec", "line 1: \\gexec is a command of psql"),
        (
            "\ncopy a (id, note) from stdin;\n1\tx\n\\.\n",
            "line 2: copy a (id, note) from stdin needs rows",
        ),
        (
            "copy (select 1) to stdout",
            "line 1: copy (select 1) to stdout needs rows",
        ),
        ("begin;\nselect 1", "line 1: begin has no COMMIT"),
        ("rollback; select 1", "line 1: rollback has no BEGIN"),
        (
            "begin; begin; commit",
            "line 1: begin is inside a transaction",
        ),
        (
            "begin;\nvacuum full a; commit",
            "line 2: vacuum full a cannot run between BEGIN and COMMIT",
        ),
        (
            "prepare transaction 'a'",
            "line 1: prepare transaction 'a' is not available",
        ),
        (
            "commit prepared 'a'",
            "line 1: commit prepared 'a' is not available",
        ),
        ("select (1; commit", "line 1: commit is not possible inside"),
    ] {
        let message = plan(sql).expect_err(sql).message().into_owned();
        assert!(
            message.starts_with(&format!("query: {error}")),
            "{sql}: {message}"
        );
    }
    for sql in [
        "copy a from program 'true'",
        "copy a from '/stdin'",
        "select e'\\\\', '\\'",
        "select 1 as stdin",
    ] {
        assert!(plan(sql).is_ok(), "{sql}");
    }
}

#[test]
fn bounds_are_enforced() {
    let error = plan(&"vacuum;".repeat(SEGMENTS_MAX + 2)).unwrap_err();
    assert!(error.message().contains("more than 10000 transactions"));
    let error = plan(&"a;".repeat(200_002)).unwrap_err();
    assert!(error.message().contains("more than 200000 statements"));
}

#[test]
fn standalone_commands_are_recognised() {
    use StandaloneCommand as C;
    let name = |text: &str| text.to_owned();
    for (sql, command) in [
        (
            "create index concurrently i on t (a)",
            C::CreateIndex {
                name: Some(name("i")),
                table: name("t"),
            },
        ),
        (
            "CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS \"I i\" ON ONLY \"S\".t USING btree (a)",
            C::CreateIndex {
                name: Some(name("\"I i\"")),
                table: name("\"S\".t"),
            },
        ),
        (
            "create index concurrently on a . b(c)",
            C::CreateIndex {
                name: None,
                table: name("a.b"),
            },
        ),
        (
            "drop index concurrently if exists a.i cascade",
            C::DropIndex { name: name("a.i") },
        ),
        ("reindex (verbose, concurrently) table t", C::Reindex),
        (
            "alter table if exists only a.t detach partition a.p concurrently",
            C::DetachPartition {
                table: name("a.t"),
                partition: name("a.p"),
            },
        ),
        (
            "create database \"D\" owner x",
            C::CreateDatabase {
                name: name("\"D\""),
            },
        ),
        (
            "drop database if exists d",
            C::DropDatabase { name: name("d") },
        ),
        ("vacuum (full) t", C::Repeat),
        ("call p()", C::Repeat),
    ] {
        assert_eq!(standalone(sql), command, "{sql}");
    }
}

#[test]
fn cuts_move_boundaries() {
    let sql = "select 1; call p(); select 3";
    let cuts = SegmentCuts {
        before: [20].into(),
        standalone: [10].into(),
    };
    let plan = MigrationPlan::parse(sql, &cuts).unwrap();
    assert_eq!(plan.segments.len(), 3);
    let cuts = SegmentCuts {
        before: [10].into(),
        ..SegmentCuts::default()
    };
    let mut plan = MigrationPlan::parse(sql, &cuts).unwrap();
    assert_eq!(plan.segments.len(), 2);
    plan.skip_to(9);
    assert_eq!(plan.segments[0].statements, [10..19, 20..28]);
    plan.skip_to(19);
    assert_eq!(plan.segments[0].statements[0], 20..28);
}

#[test]
fn session_settings_are_repeated() {
    let sql = "set search_path = a; set local b = 1; select pg_catalog.set_config('c', '1', false); \
               begin; set role x; rollback; vacuum; set transaction read only; reset role; select 1";
    let plan = plan(sql).unwrap();
    let repeated: Vec<_> = plan
        .settings_before(sql.len())
        .into_iter()
        .map(|range| &sql[range])
        .collect();
    assert_eq!(
        repeated,
        [
            "set search_path = a;",
            "select pg_catalog.set_config('c', '1', false);",
            "reset role;"
        ]
    );
    assert_eq!(plan.settings_before(20).len(), 1);
}

#[test]
fn context_names_the_statement() {
    let sql = "select 1;\n\ncreate  table é (\n a int);";
    assert_eq!(
        plan(sql).unwrap().context(11),
        "statement 2, line 3: create table é ( a int)"
    );
}

/// Pieces of SQL, each with the number of statements that it contains.
fn pieces() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(
        prop::sample::select(vec![
            "select 1;",
            "insert into a values ('it''s;', e'\\';', $$;vacuum;$$);",
            "/* ; /* commit; */ */",
            "-- begin;\n",
            "vacuum;",
            "begin; select 2; commit;",
            "begin; select 3; rollback;",
            "commit;",
            ";",
            "create function f() returns int begin atomic select 1; select 2; end;",
            "do $x$ begin commit; end $x$;",
            "create index concurrently \"a;b\" on t (a);",
        ]),
        0..12,
    )
}

proptest! {
    /// Every statement is in exactly one segment, in order, and each segment ends after the last.
    #[test]
    fn segments_cover_all_statements(pieces in pieces()) {
        let sql = pieces.concat();
        let plan = plan(&sql).unwrap();
        let mut at = 0;
        for segment in &plan.segments {
            for range in &segment.statements {
                prop_assert!(range.start >= at && range.end <= segment.end);
                at = range.end;
            }
            at = segment.end;
        }
        let counted = |piece: &&&str| !matches!(**piece, "commit;" | ";" | "-- begin;\n" | "/* ; /* commit; */ */");
        prop_assert_eq!(plan.statements().count(), pieces.iter().filter(counted).count());
        prop_assert_eq!(plan.whole().is_some(), plan.segments.len() <= 1
            && !pieces.iter().any(|piece| piece.contains("vacuum;") && piece.len() < 8
                || piece.contains("rollback") || piece.contains("concurrently"))
            && !(plan.segments.len() == 1 && pieces.contains(&"commit;"))
            || plan.segments.is_empty());
    }

    /// Skipping to the end of any segment leaves exactly the later ones.
    #[test]
    fn every_progress_is_resumable(pieces in pieces(), n in 0usize..12) {
        let sql = pieces.concat();
        let all = plan(&sql).unwrap();
        if let Some(done) = all.segments.get(n) {
            let mut rest = plan(&sql).unwrap();
            rest.skip_to(done.end);
            prop_assert_eq!(&rest.segments, &all.segments[n + 1..].to_vec());
        }
    }

    #[test]
    fn arbitrary_text_does_not_panic(sql in r"(?s)[a'e$\\/*;\n\- é\x22()]{0,60}") {
        if let Ok(plan) = plan(&sql) {
            for range in plan.statements() {
                let _ = plan.context(range.start);
            }
        }
    }
}
