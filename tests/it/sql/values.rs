//! Values, rows and parameters in the format of clients.

use gantry::{
    api::database::query::{SqlQuery, run_query},
    control::database_session::session::ConnectTarget,
    platform::error::Error,
};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{LIMITS, message, one, run, run_with, server};

#[tokio::test]
async fn values_are_printed_as_clients_expect() {
    let target = server().await;
    let rows = run(
        &target,
        "create type mood as enum ('sad', 'very happy');
         create domain small as int check (value < 10);
         create type pair as (a int, b text);
         select true as yes, 1::int2 as i2, 2 as i4, 3::int8 as i8, 9007199254740993 as big, 1.5::float8 as f8,
            'NaN'::float8 as nan, 12345678901234567890.10::numeric as num, 16::oid as oid, null::int as nothing,
            '{\"a\" : [1]}'::json as js, '{\"a\" : [1]}'::jsonb as jsb, 'é\"\\\n'::text as txt,
            '2026-01-02'::date as d, '2026-01-02 03:04:05.6'::timestamp as ts, '2026-01-02 03:04:05.6+00'::timestamptz as tz,
            'infinity'::timestamptz as never, '1 day 02:03'::interval as span, '\\x00ff'::bytea as bin,
            '{1,2,NULL}'::int[] as ints, '{{a,\"b,c\"},{NULL,\"NULL\"}}'::text[] as texts, '[0:1]={1,2}'::int8[] as bounds,
            array['{\"a\":1}'::jsonb] as jsons, array['very happy'::mood] as moods, 'sad'::mood as mood, 4::small as small,
            array[5::small] as smalls, row(1, 'x')::pair as pair, array[row(1, 'x')::pair] as pairs,
            array['(1,1),(0,0)'::box, '(2,2),(1,1)'::box] as boxes, array['pg_class'::regclass] as classes, int4range(1, 5) as range",
    )
    .await
    .unwrap();
    assert_eq!(
        rows,
        json!([{
            "yes": true, "i2": 1, "i4": 2, "i8": 3, "big": 9_007_199_254_740_993_u64, "f8": 1.5, "nan": "NaN",
            "num": 12_345_678_901_234_567_890.10_f64, "oid": 16, "nothing": null, "js": {"a": [1]}, "jsb": {"a": [1]}, "txt": "é\"\\\n",
            "d": "2026-01-02", "ts": "2026-01-02T03:04:05.6", "tz": "2026-01-02T03:04:05.6+00:00", "never": "infinity",
            "span": "1 day 02:03:00", "bin": "\\x00ff", "ints": [1, 2, null], "texts": [["a", "b,c"], [null, "NULL"]],
            "bounds": [1, 2], "jsons": [{"a": 1}], "moods": ["very happy"], "mood": "sad", "small": 4, "smalls": [5],
            "pair": "(1,x)", "pairs": ["(1,x)"], "boxes": ["(1,1),(0,0)", "(2,2),(1,1)"], "classes": ["pg_class"], "range": "[1,5)",
        }])
    );
}

#[tokio::test]
async fn type_of_open_transaction_is_resolved() {
    let target = server().await;
    let rows = run(
        &target,
        "begin; create type mood as enum ('sad'); select array['sad'::mood] as moods",
    )
    .await
    .unwrap();
    assert_eq!(rows, json!([{"moods": ["sad"]}]));
    assert_eq!(
        one(
            &target,
            "select count(*) from pg_type where typname = 'mood'"
        )
        .await,
        json!(0),
        "and goes with it"
    );
}

/// A value as printed by Gantry and by the server's `to_json`.
#[derive(Deserialize)]
struct Both {
    ours: Box<RawValue>,
    theirs: Option<String>,
}

impl Both {
    async fn of(
        target: &ConnectTarget,
        before: &str,
        value: &str,
        parameters: &[Value],
    ) -> Result<Self, Error> {
        let text = format!("{before} select {value} as ours, to_json({value})::text as theirs");
        let query = SqlQuery {
            text,
            parameters: parameters.to_owned(),
            read_only: false,
        };
        let [both] = serde_json::from_slice(&run_query(target, &query, LIMITS).await?).unwrap();
        Ok(both)
    }

    /// Compares exactly, except for the escapes of control characters.
    fn agree(&self) -> bool {
        let (ours, theirs) = (self.ours.get(), self.theirs.as_deref().unwrap_or("null"));
        let parsed = |text| serde_json::from_str::<Value>(text).unwrap();
        ours == theirs || ours.contains('\\') && parsed(ours) == parsed(theirs)
    }
}

#[tokio::test]
async fn values_equal_to_json() {
    let target = server().await;
    run(&target, "create type mood as enum ('sad', 'very happy'); create domain small as int; create domain smaller as small")
        .await
        .unwrap();
    for value in [
        "null::text",
        "true",
        "(-32768)::int2",
        "2147483647",
        "9223372036854775807",
        "(-9223372036854775808)::int8",
        "123456789012345678901234567890.123456789012345678901234567890::numeric",
        "1.10::numeric(5,2)",
        "0.00::numeric",
        "'NaN'::numeric",
        "'-Infinity'::numeric",
        "0.1::float4",
        "0.1::float8",
        "1e300::float8",
        "5e-324::float8",
        "'-0'::float8",
        "'Infinity'::float8",
        "'é \"quoted\" \\ back'::text",
        "e'\\x01\\b\\f\\n\\r\\t\\x1f\\x7f\u{2028}'::text",
        "'x'::char(3)",
        "'x'::\"char\"",
        "'some'::name",
        "'2026-01-02'::date",
        "'infinity'::date",
        "'0044-03-15 BC'::date",
        "'2026-01-02 03:04:05.123456'::timestamp",
        "'2026-01-02'::timestamp",
        "'infinity'::timestamp",
        "'12026-01-02 03:04'::timestamp",
        "'0044-03-15 10:00 BC'::timestamp",
        "'2026-01-02 03:04:05.6+02'::timestamptz",
        "'0044-03-15 10:00+00 BC'::timestamptz",
        "'-infinity'::timestamptz",
        "'03:04:05'::time",
        "'03:04:05+02'::timetz",
        "'1 day 02:03'::interval",
        "'00112233-4455-6677-8899-aabbccddeeff'::uuid",
        "'\\x00ff'::bytea",
        "'192.168.0.1/24'::inet",
        "'101'::bit(3)",
        "12.5::money",
        "'(1,2)'::point",
        "'a fat cat'::tsvector",
        "'{\"a\" : [1, 2.50]}'::json",
        "'{\"a\" : [1, 2.50]}'::jsonb",
        "'null'::jsonb",
        "'sad'::mood",
        "4::small",
        "4::smaller",
        "int4range(1, 5)",
        "'{}'::int[]",
        "'{1,NULL,3}'::int8[]",
        "'{{1.10,2},{3,NaN}}'::numeric[]",
        "'[0:1]={1,2}'::int[]",
        "'{t,f,NULL}'::bool[]",
        "array['a,b', '', 'NULL', null, '\"', '\\', '{}', ' ']",
        "array['2026-01-02 03:04:05'::timestamp, 'infinity', null]",
        "array['2026-01-02 03:04:05+00'::timestamptz]",
        "array['{\"a\" : 1}'::json]",
        "array['{\"a\":1}'::jsonb, null]",
        "array['sad'::mood]",
        "array[4::small]",
        "array[4::smaller]",
        "array['00112233-4455-6677-8899-aabbccddeeff'::uuid]",
        "array['(1,1),(0,0)'::box, '(2,2),(1,1)'::box]",
        "array[int4range(1, 5)]",
    ] {
        for before in [
            "",
            "set timezone = 'Asia/Kolkata';",
            "set timezone = 'America/St_Johns'; set extra_float_digits = 3;",
        ] {
            let both = Both::of(&target, before, value, &[])
                .await
                .unwrap_or_else(|error| panic!("{value}: {error}"));
            assert!(
                both.agree(),
                "{before} {value}: {} and not {:?}",
                both.ours,
                both.theirs
            );
        }
    }
}

#[tokio::test]
async fn random_values_equal_to_json() {
    let server = server().await;
    let runtime = tokio::runtime::Handle::current();
    let values = || {
        let texts = proptest::collection::vec(proptest::option::of("[^\0]{0,12}"), 0..6)
            .prop_map(|texts| ("text[]", json!(texts)));
        let floats = proptest::collection::vec(proptest::option::of(any::<f64>()), 0..6).prop_map(
            |floats| {
                let floats: Vec<_> = floats
                    .iter()
                    .map(|float| float.map(|float| float.to_string().replace("inf", "Infinity")))
                    .collect();
                ("float8[]", json!(floats))
            },
        );
        let numbers = proptest::collection::vec("-?[0-9]{1,40}(\\.[0-9]{0,40})?", 0..4)
            .prop_map(|numbers| ("numeric[]", json!(numbers)));
        let integers = any::<i64>().prop_map(|integer| ("int8", json!(integer.to_string())));
        // In microseconds, from 4700 BC to the year 30000.
        let times = (-210_000_000_000_000_000_i64..950_000_000_000_000_000)
            .prop_map(|at| ("timestamptz", json!(at)));
        prop_oneof![texts, floats, numbers, integers, times]
    };
    tokio::task::spawn_blocking(move || {
        TestRunner::new(Config::with_cases(256))
            .run(&values(), |(kind, value)| {
                let (text, parameters) = match kind {
                    "timestamptz" => (
                        format!("('epoch'::timestamptz + {value} * interval '1 microsecond')"),
                        vec![],
                    ),
                    kind => (format!("$1::{kind}"), vec![value]),
                };
                let both = runtime
                    .block_on(Both::of(&server, "", &text, &parameters))
                    .map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert!(
                    both.agree(),
                    "{}: {} and not {:?}",
                    text,
                    both.ours,
                    both.theirs
                );
                Ok(())
            })
            .unwrap();
    })
    .await
    .unwrap();
}

// Statements and parameters.

#[tokio::test]
async fn last_result_with_rows_is_returned() {
    let target = server().await;
    for (text, rows) in [
        ("", json!([])),
        ("create table t (id int)", json!([])),
        ("select 1 as a; select 2 as b", json!([{"b": 2}])),
        (
            "begin; insert into t values (7) returning id; commit",
            json!([{"id": 7}]),
        ),
        (
            "select 1 as a; select 2 as b where false",
            json!([{"a": 1}]),
        ),
        ("select from t", json!([{}])),
        ("select 1 as a, 2 as b, 3 as a", json!([{"a": 3, "b": 2}])),
    ] {
        assert_eq!(run(&target, text).await.unwrap(), rows, "{text}");
    }
    assert_eq!(one(&target, "select count(*) from t").await, json!(1));
}

#[tokio::test]
async fn parameters_have_inferred_types() {
    let target = server().await;
    run(&target, "create type mood as enum ('sad', 'glad')")
        .await
        .unwrap();
    let rows = run_with(
        &target,
        "select $1::int + 1 as n, $2 || '!' as t, $3::jsonb as j, $4::text[] as a, $5::mood[] as m, $6::text as nothing,
            $7::jsonb as list, $8::bool as b, $9::jsonb[] as jj",
        json!([1, "it's", {"k": [1, "x"]}, ["a", null, "b\"\\"], ["sad", "glad"], null, [1, [2]], true, [[1], {"a": 2}]]),
    )
    .await
    .unwrap();
    assert_eq!(
        rows,
        json!([{"n": 2, "t": "it's!", "j": {"k": [1, "x"]}, "a": ["a", null, "b\"\\"], "m": ["sad", "glad"], "nothing": null,
            "list": [1, [2]], "b": true, "jj": [[1], {"a": 2}]}])
    );
    assert!(message(run_with(&target, "select $1::int", json!(["x"])).await).contains("22P02"));
    assert!(
        message(run_with(&target, "select $1::int, $2::int", json!([1])).await).contains("08P01")
    );
    assert!(
        message(run_with(&target, "select 1; select $1::int", json!([1])).await).contains("42601")
    );
}

#[tokio::test]
async fn error_contains_code_line_and_detail() {
    let target = server().await;
    assert_eq!(
        message(run(&target, "select 1;\nselect * from nope").await),
        "Failed to run sql query: ERROR:  42P01: relation \"nope\" does not exist\nLINE 2: select * from nope\n                      ^\n"
    );
    assert_eq!(
        message(
            run(
                &target,
                "create table t (id int primary key); insert into t values (1), (1)"
            )
            .await
        ),
        "Failed to run sql query: ERROR:  23505: duplicate key value violates unique constraint \"t_pkey\"\n\
         DETAIL:  Key (id)=(1) already exists.\n"
    );
    assert!(
        message(run_with(&target, "select $1::int + nope", json!([1])).await)
            .contains("\nLINE 1: select $1::int + nope\n")
    );
    assert!(message(run(&target, "select '\0'").await).contains("NUL"));
}

#[tokio::test]
async fn copy_is_rejected_and_rolled_back() {
    let target = server().await;
    run(&target, "create table t (id int)").await.unwrap();
    for text in [
        "insert into t values (1); copy t from stdin",
        "copy t to stdout",
    ] {
        assert!(message(run(&target, text).await).contains("COPY from or to the client"));
    }
    assert!(message(run_with(&target, "copy t from stdin", json!([1])).await).contains("08P01"));
    assert_eq!(one(&target, "select count(*) from t").await, json!(0));
}
