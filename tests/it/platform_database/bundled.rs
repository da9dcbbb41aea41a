//! Bundled extensions: their documented functions, as the tenant and as
//! roles of the Data API.

use std::collections::BTreeSet;

use gantry_node::engines::bundled::BUNDLED;

use super::{Database, one, refusal};

/// Fails unless each query returns the text.
async fn expect(database: &Database, cases: &[(&str, &str)]) {
    for (sql, expected) in cases {
        assert_eq!(
            one(&database.tenant, sql).await.as_deref(),
            Some(*expected),
            "{sql} on {}",
            database.major
        );
    }
}

async fn create(database: &Database, extension: &str) {
    let sql = format!("create extension {extension} cascade");
    database.tenant.batch_execute(&sql).await.unwrap();
}

#[tokio::test]
async fn each_bundled_extension_is_created_in_every_version_and_dropped() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        let available = "select count(*) from pg_available_extensions where name = 'hypopg'";
        let has_hypopg = one(tenant, available).await.as_deref() == Some("1");
        for extension in BUNDLED {
            let name = extension.name;
            if name == "index_advisor" && !has_hypopg {
                assert_eq!(
                    refusal(tenant, "create extension index_advisor").await,
                    "0A000"
                );
                continue;
            }
            let mut versions = BTreeSet::new();
            let listed = format!(
                "select version from pg_available_extension_versions where name = '{name}'"
            );
            for row in tenant.query(&listed, &[]).await.unwrap() {
                versions.insert(row.get::<_, String>(0));
            }
            assert!(versions.contains(extension.version), "{name}: {versions:?}");
            for version in versions {
                let cycle = format!(
                    "create extension if not exists \"{name}\" version '{version}' cascade;
                     create extension if not exists \"{name}\";
                     alter extension \"{name}\" update;
                     drop extension \"{name}\" cascade"
                );
                tenant
                    .batch_execute(&cycle)
                    .await
                    .unwrap_or_else(|error| panic!("{name} {version}: {error:?}"));
            }
        }
    }
}

#[tokio::test]
async fn pgjwt_signs_as_pgcrypto_and_verifies_claims_of_time() {
    for database in Database::on_each().await {
        create(&database, "pgjwt with schema extensions").await;
        // A token that other implementations make of this payload and secret.
        let token = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIiwiYWRtaW4iOnRydWV9.TJVA95OrM7E2cBab30RMHrHDcEfxjoYZgeFONFh7HgQ";
        let payload = r#"{"sub":"1234567890","name":"John Doe","admin":true}"#;
        expect(
            &database,
            &[
                (&format!("select sign('{payload}', 'secret')"), token),
                (
                    "select bool_and(extensions.algorithm_sign('text', key, 'HS' || bits)
                        = extensions.url_encode(extensions.hmac('text', key, 'sha' || bits)))
                     from unnest(array[256, 384, 512]) as bits,
                        unnest(array['k', repeat('ä', 32), repeat('k', 64), repeat('k', 200)]) as key",
                    "t",
                ),
                ("select extensions.url_decode(extensions.url_encode('\\xfbff00'))", "\\xfbff00"),
                ("select valid from extensions.verify(extensions.sign('{\"a\": 1}', 'k'), 'k')", "t"),
                ("select valid from extensions.verify(extensions.sign('{}', 'k'), 'other')", "f"),
                ("select valid from extensions.verify(extensions.sign('{\"exp\": 1}', 'k'), 'k')", "f"),
                ("select valid from extensions.verify(extensions.sign('{\"nbf\": 9e9}', 'k'), 'k')", "f"),
                ("select coalesce(extensions.try_cast_double('x'), 2)", "2"),
            ],
        )
        .await;
        let tenant = &database.tenant;
        assert_eq!(
            refusal(tenant, "select sign('{}', 'k', 'none')").await,
            "22023"
        );
    }
}

#[tokio::test]
async fn pg_hashids_encodes_as_other_implementations_and_decodes_only_its_own() {
    for database in Database::on_each().await {
        create(&database, "pg_hashids with schema extensions").await;
        // Published vectors, and results of the implementation for Python.
        let long = "array(select n from generate_series(1, 20) as n)";
        for (numbers, options, encoded) in [
            ("array[0]", "", "gY"),
            ("array[1001]", "", "jNl"),
            ("array[928728]", "", "R8ZN0"),
            ("array[1, 2, 3]", "", "o2fXhV"),
            ("array[1, 0, 0]", "", "jRfMcP"),
            ("array[9007199254740991]", "", "lEW77X7g527"),
            ("array[9223372036854775807]", "", "p21ZD04m8GQ42"),
            (long, "", "1wfphpilsMtNumCRFRHXIDSqT2UPcWf1hZi3s7tN"),
            ("array[1234567]", ", 'This is my salt'", "Pdzxp"),
            ("array[1234567]", ", 'This is my salt', 10", "PlRPdzxpR7"),
            (
                "array[1234567]",
                ", 'This is my salt', 10, 'abcdefghijABCDxFGHIJ1234567890'",
                "3GJ956J9B9",
            ),
            (
                "array[1, 2, 3]",
                ", 'this is my salt', 30",
                "ZPVgxzNb59LGlaHquq06DmlyMX3okO",
            ),
            (
                "array[683, 94108, 123, 5]",
                ", 'this is my salt', 0, 'abcdefghijklmnopqrstuvwxyz'",
                "xlyqfoqqzxfbgij",
            ),
            // A salt is used as UTF-8, as by the original.
            ("array[1, 2]", ", 'Grüße', 12", "rd4PLrSLlwZ9"),
            ("array[17]", ", '', 9, 'cfhistuCFHISTU01'", "1c101110c"),
            (
                "array[1234567, 8]",
                ", 'x', 8, 'abdegjklmnopqrvwxyzABDEGJKLMNOPQRVWXYZ1234567890'",
                "9Y6X7Rk5",
            ),
            ("array[5, 5]", ", 's', 0, 'abcdefghijklmnop0'", "dpcj"),
        ] {
            let encode = format!("select id_encode(({numbers})::bigint[]{options})");
            let decode = format!("select id_decode('{encoded}'{options}) = ({numbers})::bigint[]");
            expect(&database, &[(&encode, encoded), (&decode, "t")]).await;
        }
        let hex = "507f1f77bcf86cd799439011";
        expect(
            &database,
            &[
                ("select id_encode(1001) || hash_encode(1001)", "jNljNl"),
                ("select id_decode_once('jNl') + hash_decode('Pdzxp', 'This is my salt', 0)", "1235568"),
                (&format!("select id_encode_hex('{hex}')"), "y42LW46J9luq3Xq9XMly"),
                ("select id_decode_hex('y42LW46J9luq3Xq9XMly')", hex),
                ("select id_encode_hex('FA', 'this is my salt')", "lzY"),
                ("select id_decode_hex('lzY', 'this is my salt')", "fa"),
                ("select id_encode_hex('x') || id_encode(array[]::bigint[])", ""),
                // Made with another salt, cut off, or of other characters.
                ("select id_decode('jNl', 'other')", "{}"),
                ("select id_decode('jN') || id_decode('') || id_decode('é') || id_decode('jNl jNl')", "{}"),
                ("select coalesce(id_decode_once('jNl', 'other'), -1)", "-1"),
                ("select coalesce(id_encode(null::bigint), 'null')", "null"),
                (
                    "select bool_and(id_decode(id_encode(array[n, n * n], 's', n % 40), 's', n % 40) = array[n, n * n]::bigint[])
                     from generate_series(0, 300) as n",
                    "t",
                ),
            ],
        )
        .await;
        for invalid in [
            "select id_encode(-1)",
            "select id_encode(1, '', 0, 'abc')",
            "select id_encode(1, '', 0, 'abcdefghijklmnopä')",
        ] {
            assert_eq!(refusal(&database.tenant, invalid).await, "22023");
        }
    }
}

#[tokio::test]
async fn pgmq_delivers_each_message_to_one_reader_until_its_time() {
    for database in Database::on_each().await {
        create(&database, "pgmq").await;
        let ids = "select string_agg(msg_id || ':' || read_ct, ',') from ";
        expect(
            &database,
            &[
                ("select pgmq.create('Jobs')::text || pgmq.create('Jobs')::text", ""),
                ("select send from pgmq.send('Jobs', '{\"n\": 1}')", "1"),
                ("select send from pgmq.send('Jobs', '{\"n\": 2}', 60)", "2"),
                ("select send from pgmq.send('Jobs', '{\"n\": 3}', '{\"h\": 1}'::jsonb)", "3"),
                (
                    "select string_agg(id::text, ',') from pgmq.send_batch('Jobs', array['{\"n\": 4}', '{\"n\": 5}']::jsonb[]) as id",
                    "4,5",
                ),
                (&format!("{ids} pgmq.read('Jobs', 60, 2)"), "1:1,3:1"),
                (&format!("{ids} pgmq.read('Jobs', 60, 9, '{{\"n\": 5}}')"), "5:1"),
                ("select queue_length || ' ' || queue_visible_length || ' ' || total_messages from pgmq.metrics('Jobs')", "5 1 5"),
                (&format!("{ids} pgmq.pop('Jobs')"), "4:0"),
                ("select count(*) from pgmq.read('Jobs', 60, 9)", "0"),
                (&format!("{ids} pgmq.set_vt('Jobs', 1, -1)"), "1:1"),
                (&format!("{ids} pgmq.read_with_poll('Jobs', 60, 9, 1, 10)"), "1:2"),
                ("select pgmq.archive('Jobs', 1) || ' ' || pgmq.archive('Jobs', 1)", "true false"),
                ("select string_agg(msg_id || message::text, '') from pgmq.a_jobs", "1{\"n\": 1}"),
                ("select count(*) from pgmq.delete('Jobs', array[3, 99])", "1"),
                ("select pgmq.purge_queue('Jobs')", "2"),
                ("select string_agg(queue_name, ',') from pgmq.list_queues()", "Jobs"),
                ("select count(*) from pgmq.metrics_all()", "1"),
                ("select pgmq.drop_queue('Jobs') || ' ' || pgmq.drop_queue('Jobs')", "true false"),
                ("select to_regclass('pgmq.q_jobs') is null", "t"),
            ],
        )
        .await;
        let tenant = &database.tenant;
        for (sql, code) in [
            ("select pgmq.create('a;b')", "42602"),
            ("select pgmq.create(repeat('x', 48))", "42622"),
            ("select pgmq.create_partitioned('x')", "0A000"),
            ("select pgmq.send('missing', '{}')", "42P01"),
        ] {
            assert_eq!(refusal(tenant, sql).await, code, "{sql}");
        }
        // Two readers at a time, and access of the service role by grants of the tenant.
        let grants = "select pgmq.create('shared'); select pgmq.send('shared', '1'), pgmq.send('shared', '2');
            grant usage on schema pgmq to service_role;
            grant all on all tables in schema pgmq to service_role;
            revoke execute on function pgmq.drop_queue(text) from public";
        tenant.batch_execute(grants).await.unwrap();
        let other = database
            .machine
            .connect(&database.project, "postgres")
            .await
            .unwrap();
        other
            .batch_execute("begin; set local role service_role")
            .await
            .unwrap();
        assert_eq!(
            one(&other, "select msg_id from pgmq.read('shared', 9, 1)")
                .await
                .unwrap(),
            "1"
        );
        assert_eq!(
            one(tenant, "select msg_id from pgmq.read('shared', 9, 1)")
                .await
                .unwrap(),
            "2"
        );
        assert_eq!(
            refusal(&other, "select pgmq.drop_queue('shared')").await,
            "42501"
        );
    }
}

#[tokio::test]
async fn pg_net_queues_requests_of_api_roles_without_access_to_the_queue() {
    for database in Database::on_each().await {
        create(&database, "pg_net with schema extensions").await;
        let admin = &database.admin;
        admin
            .batch_execute("begin; set local role anon")
            .await
            .unwrap();
        let post = "select net.http_post(url := 'https://example.com/a?x=1', body := '{\"b\": 1}',
            params := '{\"q\": \"ä c\"}', headers := '{\"Authorization\": \"Bearer t\"}')";
        assert_eq!(one(admin, post).await.as_deref(), Some("1"));
        assert_eq!(
            refusal(admin, "select * from net.http_request_queue").await,
            "42501"
        );
        admin.batch_execute("rollback").await.unwrap();
        expect(
            &database,
            &[
                (post, "2"),
                (
                    "select concat_ws(' ', method, url, headers ->> 'Content-Type', headers ->> 'Authorization',
                        convert_from(body, 'UTF8'), timeout_milliseconds) from net.http_request_queue",
                    "POST https://example.com/a?x=1&q=%C3%A4%20c application/json Bearer t {\"b\": 1} 5000",
                ),
                ("select net.http_get('https://example.com', timeout_milliseconds := 100)", "3"),
                ("select net.http_delete('https://example.com')", "4"),
                ("select (net.http_collect_response(2)).status", "PENDING"),
                ("select (net._http_collect_response(99)).status", "ERROR"),
            ],
        )
        .await;
        let tenant = &database.tenant;
        for (sql, code) in [
            ("select net.http_get('file:///etc/passwd')", "22023"),
            (
                "select net.http_post('https://a', headers := '{\"content-type\": \"text/xml\"}')",
                "22023",
            ),
        ] {
            assert_eq!(refusal(tenant, sql).await, code, "{sql}");
        }
        assert_eq!(
            refusal(tenant, "select net.check_worker_is_up()").await,
            "P0001"
        );
        // No function with the rights of its owner belongs to the superuser.
        let definers = "select count(*) from pg_proc p join pg_roles r on r.oid = p.proowner
            where pronamespace = 'net'::regnamespace and prosecdef and rolsuper";
        assert_eq!(one(tenant, definers).await.as_deref(), Some("0"));
    }
}

#[tokio::test]
async fn pg_graphql_accepts_directives_and_answers_with_an_error_of_graphql() {
    for database in Database::on_each().await {
        let call = "select graphql_public.graphql(query := '{ a }') -> 'errors' -> 0 ->> 'message'";
        expect(&database, &[(call, "pg_graphql extension is not enabled.")]).await;
        create(&database, "pg_graphql with schema graphql").await;
        let answer = "GraphQL is not executed by this server; use the REST API";
        expect(
            &database,
            &[
                (call, answer),
                ("select graphql.resolve('{ a }') ->> 'data' is null", "t"),
                (
                    "select graphql.comment_directive('@graphql({\"name\": \"A\"})') ->> 'name'",
                    "A",
                ),
            ],
        )
        .await;
        let admin = &database.admin;
        let anon = "begin; set local role anon";
        admin.batch_execute(anon).await.unwrap();
        assert_eq!(one(admin, call).await.as_deref(), Some(answer));
        admin.batch_execute("rollback").await.unwrap();
    }
}

#[tokio::test]
async fn pg_jsonschema_accepts_and_rejects_by_each_keyword() {
    // Schema, an instance that it accepts, and one that it rejects.
    const CASES: &[(&str, &str, &str)] = &[
        (r#"{"type": "integer"}"#, "1.0", "1.5"),
        (r#"{"type": ["string", "null"]}"#, "null", "true"),
        (r#"{"enum": [1, "a"]}"#, r#""a""#, "2"),
        (r#"{"const": {"a": 1}}"#, r#"{"a": 1.0}"#, "{}"),
        (r#"{"required": ["a"]}"#, r#"{"a": null}"#, r#"{"b": 1}"#),
        (
            r#"{"properties": {"a": {"type": "string"}}}"#,
            r#"{"b": 1}"#,
            r#"{"a": 1}"#,
        ),
        (
            r#"{"properties": {"a": true}, "additionalProperties": false}"#,
            r#"{"a": 1}"#,
            r#"{"b": 1}"#,
        ),
        (
            r#"{"patternProperties": {"^x": {"minimum": 1}}}"#,
            r#"{"y": 0}"#,
            r#"{"xy": 0}"#,
        ),
        (
            r#"{"propertyNames": {"maxLength": 1}}"#,
            r#"{"a": 1}"#,
            r#"{"ab": 1}"#,
        ),
        (
            r#"{"minProperties": 1, "maxProperties": 2}"#,
            r#"{"a": 1}"#,
            "{}",
        ),
        (
            r#"{"dependentRequired": {"a": ["b"]}}"#,
            r#"{"b": 1}"#,
            r#"{"a": 1}"#,
        ),
        (r#"{"items": {"type": "number"}}"#, "[1]", r#"[1, "a"]"#),
        (
            r#"{"prefixItems": [true], "items": false}"#,
            "[1]",
            "[1, 2]",
        ),
        (
            r#"{"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}], "additionalItems": {"type": "null"}}"#,
            r#"["a", null]"#,
            r#"["a", 1]"#,
        ),
        (
            r#"{"minItems": 1, "maxItems": 2, "uniqueItems": true}"#,
            "[1, 2]",
            "[1, 1.0]",
        ),
        (
            r#"{"contains": {"const": 1}, "maxContains": 1}"#,
            "[1, 2]",
            "[1, 1]",
        ),
        (r#"{"minimum": 1, "exclusiveMaximum": 3}"#, "1", "3"),
        (r#"{"multipleOf": 0.5}"#, "1.5", "0.3"),
        (r#"{"minLength": 2, "maxLength": 3}"#, r#""äö""#, r#""ä""#),
        (r#"{"pattern": "^[a-z]+$"}"#, r#""abc""#, r#""a1""#),
        (r#"{"allOf": [{"minimum": 1}, {"maximum": 2}]}"#, "2", "3"),
        (
            r#"{"anyOf": [{"type": "string"}, {"minimum": 2}]}"#,
            "2",
            "1",
        ),
        (r#"{"oneOf": [{"minimum": 1}, {"minimum": 2}]}"#, "1", "2"),
        (r#"{"not": {"type": "null"}}"#, "1", "null"),
        (
            r#"{"if": {"type": "string"}, "then": {"minLength": 1}, "else": {"minimum": 1}}"#,
            "1",
            r#""""#,
        ),
        (
            r##"{"$ref": "#/$defs/tree", "$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}, "maxItems": 1}}}"##,
            "[[[]]]",
            "[[[1, 2]]]",
        ),
        ("true", "1", ""),
        ("false", "", "1"),
    ];
    for database in Database::on_each().await {
        create(&database, "pg_jsonschema with schema extensions").await;
        for (schema, accepted, rejected) in CASES {
            let parsed = serde_json::from_str(schema).unwrap();
            let other = jsonschema::validator_for(&parsed).unwrap();
            for (instance, expected) in [(accepted, "t"), (rejected, "f")] {
                if instance.is_empty() {
                    continue;
                }
                let parsed = serde_json::from_str(instance).unwrap();
                assert_eq!(
                    other.is_valid(&parsed),
                    expected == "t",
                    "{schema} {instance}"
                );
                for function in ["json_matches_schema", "jsonb_matches_schema"] {
                    let sql = format!("select {function}('{schema}', '{instance}')");
                    expect(&database, &[(&sql, expected)]).await;
                }
                let errors = format!(
                    "select jsonschema_validation_errors('{schema}', '{instance}') = '{{}}'"
                );
                expect(
                    &database,
                    &[
                        (&errors, expected),
                        (&format!("select jsonschema_is_valid('{schema}')"), "t"),
                    ],
                )
                .await;
            }
        }
        for wrong in [
            r#"{"type": "text"}"#,
            "[]",
            r#"{"maxLength": -1}"#,
            r#"{"properties": {"a": 1}}"#,
            r#"{"required": "a"}"#,
        ] {
            expect(
                &database,
                &[(&format!("select jsonschema_is_valid('{wrong}')"), "f")],
            )
            .await;
            let used = format!("select json_matches_schema('{wrong}', '1')");
            assert_eq!(refusal(&database.tenant, &used).await, "22023", "{wrong}");
        }
        for (schema, code) in [
            (r##"{"$ref": "#"}"##, "54000"),
            (r#"{"$ref": "https://example.com"}"#, "0A000"),
            (r#"{"unevaluatedProperties": false}"#, "0A000"),
        ] {
            let sql = format!("select json_matches_schema('{schema}', '{{}}')");
            assert_eq!(refusal(&database.tenant, &sql).await, code, "{schema}");
        }
        let check = "create table checked (value jsonb check (jsonb_matches_schema('{\"type\": \"object\"}', value)));
            insert into checked values ('{}')";
        database.tenant.batch_execute(check).await.unwrap();
        assert_eq!(
            refusal(&database.tenant, "insert into checked values ('1')").await,
            "23514"
        );
    }
}

#[tokio::test]
async fn index_advisor_names_the_index_that_a_query_needs() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        let available = "select count(*) from pg_available_extensions where name = 'index_advisor'";
        if one(tenant, available).await.as_deref() == Some("0") {
            continue;
        }
        create(&database, "index_advisor with schema extensions").await;
        let books = "create table public.books (id int primary key, title text);
            insert into public.books select n, 'title ' || n from generate_series(1, 20000) as n;
            analyze public.books";
        tenant.batch_execute(books).await.unwrap();
        let advice = "select index_statements || errors from index_advisor('select id from books where title = $1')";
        expect(
            &database,
            &[
                (advice, "{\"CREATE INDEX ON public.books USING btree (title)\"}"),
                ("select index_statements || errors from index_advisor('select title from books where id = 1;')", "{}"),
                ("select errors from index_advisor('select 1; drop table books')", "{\"Query must not contain a semicolon\"}"),
                ("select errors from index_advisor('select missing')", "{\"column \\\"missing\\\" does not exist\"}"),
                (advice, "{\"CREATE INDEX ON public.books USING btree (title)\"}"),
                ("select count(*) from books", "20000"),
            ],
        )
        .await;
    }
}

/// A bundled script runs as superuser, in a schema that the tenant may have filled before.
#[tokio::test]
async fn objects_of_the_tenant_do_not_run_while_a_bundled_script_does() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        for schema in ["pgmq", "net", "elsewhere"] {
            let body =
                "language plpgsql as 'begin alter role postgres superuser; return null; end'";
            let trap = format!(
                "create schema {schema};
                 create function {schema}.equal(text, text) returns boolean {body};
                 create function {schema}.equal(name, text) returns boolean {body};
                 create function {schema}.now() returns timestamptz {body};
                 create function {schema}.format(text, regprocedure) returns text {body};
                 create operator {schema}.=
                     (function = {schema}.equal, leftarg = text, rightarg = text);
                 create operator {schema}.=
                     (function = {schema}.equal, leftarg = name, rightarg = text)"
            );
            tenant.batch_execute(&trap).await.unwrap();
        }
        for extension in [
            "pgmq",
            "pg_net schema elsewhere",
            "pg_hashids schema elsewhere",
            "pgjwt schema elsewhere",
            "pg_jsonschema schema elsewhere",
            "pg_graphql schema elsewhere",
        ] {
            tenant
                .batch_execute(&format!("create extension {extension}"))
                .await
                .unwrap();
        }
        let superuser =
            "select rolsuper from pg_roles where rolname operator(pg_catalog.=) 'postgres'";
        assert_eq!(one(&database.admin, superuser).await.as_deref(), Some("f"));
    }
}
