//! Advisors: every lint finds its problem, and nothing after it is fixed.

use std::collections::BTreeSet;

use gantry::{
    api::database::advisors::{LintCategory, advise},
    control::database_session::session::ConnectTarget,
};
use serde_json::{Value, json};

use crate::{
    sql::{LIMITS, run, server},
    support::TestApp,
};

/// A lint, a database with its problem, the expected finding, and the fix.
struct Case {
    lint: &'static str,
    fault: &'static str,
    /// Type, schema and name of the object, and a part of the detail.
    found: (&'static str, &'static str, &'static str, &'static str),
    mended: &'static str,
}

const CASES: [Case; 17] = [
    Case {
        lint: "rls_disabled_in_public",
        fault: "create table t (id int primary key); grant select on t to anon; create table unreachable (id int primary key)",
        found: ("table", "public", "t", "RLS has not been enabled"),
        mended: "alter table t enable row level security",
    },
    Case {
        lint: "policy_exists_rls_disabled",
        fault: "create table t (id int primary key); create policy \"my own\" on t using (true)",
        found: ("table", "public", "t", "RLS is not enabled: \"my own\""),
        mended: "alter table t enable row level security",
    },
    Case {
        lint: "rls_enabled_no_policy",
        fault: "create table app.t (id int primary key); alter table app.t enable row level security",
        found: ("table", "app", "t", "no policies exist"),
        mended: "create policy p on app.t using (true)",
    },
    Case {
        lint: "security_definer_view",
        fault: "create view v as select 1 as a; grant select on v to authenticated",
        found: ("view", "public", "v", "`public.v`"),
        mended: "alter view v set (security_invoker = on)",
    },
    Case {
        lint: "function_search_path_mutable",
        fault: "create function f(a int) returns int language sql as 'select a'",
        found: ("function", "public", "f", "role mutable search_path"),
        mended: "alter function f set search_path = ''",
    },
    Case {
        lint: "extension_in_public",
        fault: "create extension hstore schema public",
        found: ("extension", "", "hstore", "public schema"),
        mended: "drop extension hstore; create extension hstore schema extensions",
    },
    Case {
        lint: "materialized_view_in_api",
        fault: "create materialized view v as select 1 as a; grant select on v to anon",
        found: ("view", "public", "v", "`public.v`"),
        mended: "revoke all on v from anon",
    },
    Case {
        lint: "auth_users_exposed",
        fault: "create view v with (security_invoker) as select * from auth.users; grant select on v to anon",
        found: ("view", "public", "v", "may expose `auth.users`"),
        mended: "revoke all on v from anon",
    },
    Case {
        lint: "rls_references_user_metadata",
        fault: "create table t (id int primary key, data json); alter table t enable row level security;
                create policy p on t using ((current_setting('request.jwt', true)::json -> 'user_metadata' ->> 'admin') = 'yes')",
        found: ("table", "public", "t", "`p` that references user_metadata"),
        mended: "alter policy p on t using ((current_setting('request.jwt', true)::json -> 'app_metadata' ->> 'admin') = 'yes')",
    },
    Case {
        lint: "unsupported_reg_types",
        fault: "create table t (id int primary key, what regproc, fine regclass)",
        found: ("table", "public", "t", "column `what` with unsupported reg* type `regproc`"),
        mended: "alter table t alter what type text",
    },
    Case {
        lint: "unindexed_foreign_keys",
        fault: "create table a (id int, part int, primary key (id, part)); create table b (id int primary key, a int, p int, foreign key (a, p) references a);
                create index on b (a, id, p); create index on b (p, a) where id > 7; insert into a values (1, 1)",
        found: ("table", "public", "b", "foreign key `b_a_p_fkey`"),
        mended: "create index on b (p, a, id)",
    },
    Case {
        lint: "no_primary_key",
        fault: "create table t (id int unique)",
        found: ("table", "public", "t", "does not have a primary key"),
        mended: "alter table t add primary key (id)",
    },
    Case {
        lint: "unused_index",
        fault: "create table t (id int primary key, a int); create index i on t (a)",
        found: ("table", "public", "t", "Index `i` on table `public.t`"),
        mended: "drop index i",
    },
    Case {
        lint: "duplicate_index",
        fault: "create table t (id int primary key, a int); create index i on t (a); create index j on t (a); create index k on t (a desc)",
        found: ("table", "public", "t", "identical indexes {i, j}"),
        mended: "drop index j",
    },
    Case {
        lint: "multiple_permissive_policies",
        fault: "create table t (id int primary key); alter table t enable row level security;
                create policy p on t for select to anon using (id = 1); create policy q on t to anon using (id = 2); create policy r on t for select using (true)",
        found: ("table", "public", "t", "role `anon` for action `SELECT`: {p, q}"),
        mended: "drop policy q on t",
    },
    Case {
        lint: "auth_rls_initplan",
        fault: "create table t (id int primary key, owner text); alter table t enable row level security;
                create policy p on t using (owner = current_setting('x') or owner = (select current_setting('x')))",
        found: ("table", "public", "t", "policy `p`"),
        mended: "alter policy p on t using (owner = (select current_setting('x')))",
    },
    Case {
        lint: "foreign_table_in_api",
        fault: "",
        found: ("table", "public", "t", "accessible over APIs"),
        mended: "revoke all on t from anon",
    },
];

async fn findings(target: &ConnectTarget, lint: &str) -> Vec<Value> {
    let category = if LintCategory::Security
        .lints()
        .iter()
        .any(|known| known.name == lint)
    {
        LintCategory::Security
    } else {
        LintCategory::Performance
    };
    let all = advise(target, category, LIMITS)
        .await
        .unwrap_or_else(|error| panic!("{lint}: {error}"));
    all.into_iter()
        .map(|finding| json!(finding))
        .filter(|finding| finding["name"] == lint)
        .collect()
}

#[tokio::test]
async fn every_lint_finds_its_problem_until_it_is_fixed() {
    let target = server().await;
    for Case {
        lint,
        fault,
        found: (kind, schema, name, detail),
        mended,
    } in &CASES
    {
        // A foreign table needs a wrapper, and wrappers with a handler need a superuser. A wrapper
        // without a handler suffices.
        let fault = if fault.is_empty() {
            let admin = target.admin().await;
            admin
                .batch_execute(
                    "create foreign data wrapper w; create server s foreign data wrapper w; grant usage on foreign server s to postgres",
                )
                .await
                .unwrap();
            "create foreign table t (id int) server s; grant select on t to anon"
        } else {
            fault
        };
        run(&target, "drop schema if exists app, public cascade; create schema public; create schema app; grant usage on schema public to anon")
            .await
            .unwrap();
        assert_eq!(
            findings(&target, lint).await,
            [Value::Null; 0],
            "{lint} in an empty database"
        );
        run(&target, fault)
            .await
            .unwrap_or_else(|error| panic!("{lint}: {error}"));
        let faults = findings(&target, lint).await;
        let [only] = faults.as_slice() else {
            panic!("{lint}: {faults:#?}")
        };
        assert_eq!(
            (&only["metadata"]["type"], &only["metadata"]["name"]),
            (&json!(kind), &json!(name)),
            "{lint}"
        );
        assert!(
            schema.is_empty() || only["metadata"]["schema"] == *schema,
            "{only:#}"
        );
        assert!(
            only["detail"].as_str().unwrap().contains(detail),
            "{only:#}"
        );
        assert!(
            only["cache_key"]
                .as_str()
                .unwrap()
                .starts_with(&format!("{lint}_")),
            "{only:#}"
        );
        run(&target, mended)
            .await
            .unwrap_or_else(|error| panic!("{lint}: {error}"));
        assert_eq!(
            findings(&target, lint).await,
            [Value::Null; 0],
            "{lint} once it is mended"
        );
    }
}

#[test]
fn every_lint_has_a_case_and_unique_name() {
    let lints: Vec<_> = [LintCategory::Security, LintCategory::Performance]
        .into_iter()
        .flat_map(LintCategory::lints)
        .map(|lint| lint.name)
        .collect();
    let named: BTreeSet<_> = lints.iter().copied().collect();
    assert_eq!(
        (named.len(), &named),
        (lints.len(), &CASES.iter().map(|case| case.lint).collect())
    );
}

#[tokio::test]
async fn finding_has_all_fields() {
    let target = server().await;
    run(&target, "create table a (id int primary key); create table b (id int primary key, x int, a int references a)").await.unwrap();
    assert_eq!(
        findings(&target, "unindexed_foreign_keys").await,
        [json!({
            "name": "unindexed_foreign_keys", "title": "Unindexed foreign keys", "level": "INFO", "facing": "EXTERNAL",
            "categories": ["PERFORMANCE"],
            "description": "A foreign key has no index that begins with its columns: joins over it, and every removal of what it refers to, read the whole table.",
            "detail": "Table `public.b` has a foreign key `b_a_fkey` without a covering index",
            "remediation": "Run `create index on …` with the columns of the key.",
            "metadata": {"schema": "public", "name": "b", "type": "table", "fkey_name": "b_a_fkey", "fkey_columns": [3]},
            "cache_key": "unindexed_foreign_keys_public_b_b_a_fkey",
        })]
    );
}

#[tokio::test]
async fn get_advisors_returns_findings() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let path = format!("/v1/projects/{project}");
    let get = |rest: &str| {
        app.get(&format!("{path}/advisors/{rest}"))
            .as_(&app.read_only)
            .send()
    };
    for fresh in ["security", "performance", "security?lint_type=sql"] {
        assert_eq!(
            get(fresh).await.expect(200).json(),
            json!({"lints": []}),
            "{fresh}"
        );
    }
    let sql = json!({"query": "create table t (id int); grant select on t to anon"});
    app.post(&format!("{path}/database/query"))
        .as_(&app.owner)
        .json(&sql)
        .send()
        .await
        .expect(201);
    for (kind, lint) in [
        ("security", "rls_disabled_in_public"),
        ("performance", "no_primary_key"),
    ] {
        let lints = get(kind).await.expect(200).json()["lints"].clone();
        assert_eq!(
            lints
                .as_array()
                .unwrap()
                .iter()
                .map(|lint| &lint["name"])
                .collect::<Vec<_>>(),
            [lint]
        );
    }
    get("security?lint_type=other").await.expect(400);
}

#[tokio::test]
async fn run_advisors_returns_findings_of_selected_lints() {
    let app = TestApp::running().await;
    let project = app.real_project().await;
    let sql = json!({"query": "create table t (id int); grant select on t to anon"});
    app.post(&format!("/v1/projects/{project}/database/query"))
        .as_(&app.owner)
        .json(&sql)
        .send()
        .await
        .expect(201);
    let run = async |names: &[&str]| {
        let lints: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let body = json!({"data": {"type": "project_advisors", "attributes": {"lints": lints}}});
        app.post(&format!("/v2/projects/{project}/advisors/run"))
            .as_(&app.read_only)
            .json(&body)
            .send()
            .await
    };
    let answer = run(&["no_primary_key", "unused_index", "ssl_not_enforced"])
        .await
        .expect(200)
        .json();
    assert_eq!(answer["data"]["type"], "project_advisors");
    let lints = answer["data"]["attributes"]["lints"].as_array().unwrap();
    let found: Vec<_> = lints
        .iter()
        .map(|lint| {
            (
                lint["name"].as_str().unwrap(),
                lint["detail"].as_str().unwrap(),
            )
        })
        .collect();
    let expected = [
        (
            "no_primary_key",
            "Table `public.t` does not have a primary key",
        ),
        (
            "advisor_check_unavailable",
            "`ssl_not_enforced` is not checked",
        ),
    ];
    assert_eq!(found, expected);
    for wrong in [&[][..], &["no_such_lint"], &["unused_index"; 16]] {
        run(wrong).await.expect(400);
    }
}
