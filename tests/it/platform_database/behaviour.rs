//! Functions of the platform, as their public documentation describes them.

use super::{Database, one, refusal};
use crate::support::machine::engine;

/// Begins a transaction as PostgREST does: with a role and the claims of a token.
fn request(role: &str, claims: &str) -> String {
    format!("begin; set local role {role}; set local request.jwt.claims = '{claims}'; ")
}

#[tokio::test]
async fn auth_functions_return_the_claims_of_the_request() {
    for database in Database::on_each().await {
        let admin = &database.admin;
        let id = "11111111-2222-3333-4444-555555555555";
        let claims = format!(
            r#"{{"sub": "{id}", "role": "authenticated", "email": "a@example.com", "aal": "aal1"}}"#
        );
        admin
            .batch_execute(&request("authenticated", &claims))
            .await
            .unwrap();
        assert_eq!(one(admin, "select auth.uid()").await.as_deref(), Some(id));
        assert_eq!(
            one(admin, "select auth.role()").await.as_deref(),
            Some("authenticated")
        );
        assert_eq!(
            one(admin, "select auth.email()").await.as_deref(),
            Some("a@example.com")
        );
        assert_eq!(
            one(admin, "select auth.jwt() ->> 'aal'").await.as_deref(),
            Some("aal1")
        );
        admin.batch_execute("rollback").await.unwrap();

        // Outside a request, and in one without a token.
        for begin in [
            "begin; ".to_owned(),
            "begin; set local request.jwt.claims = ''; ".to_owned(),
            request("anon", "{}"),
        ] {
            admin.batch_execute(&begin).await.unwrap();
            assert_eq!(one(admin, "select auth.uid()").await, None);
            assert_eq!(one(admin, "select auth.role()").await, None);
            admin.batch_execute("rollback").await.unwrap();
        }

        // Settings of one claim each, from older versions of PostgREST.
        let older = format!(
            "begin; set local request.jwt.claim.sub = '{id}'; set local request.jwt.claim.role = 'anon'"
        );
        admin.batch_execute(&older).await.unwrap();
        assert_eq!(one(admin, "select auth.uid()").await.as_deref(), Some(id));
        assert_eq!(
            one(admin, "select auth.role()").await.as_deref(),
            Some("anon")
        );
        admin.batch_execute("rollback").await.unwrap();
    }
}

#[tokio::test]
async fn policy_with_auth_uid_shows_each_user_its_own_rows() {
    let database = Database::on(&engine()).await;
    let setup = "
        create table public.notes (owner uuid references auth.users, text text);
        alter table public.notes enable row level security;
        grant select on public.notes to anon, authenticated;
        create policy own on public.notes for select to authenticated using (auth.uid() = owner);
        insert into auth.users (id, email) values
            ('11111111-0000-0000-0000-000000000000', 'one@example.com'),
            ('22222222-0000-0000-0000-000000000000', 'two@example.com');
        insert into public.notes values
            ('11111111-0000-0000-0000-000000000000', 'of one'),
            ('22222222-0000-0000-0000-000000000000', 'of two')";
    database.tenant.batch_execute(setup).await.unwrap();
    let seen = "select string_agg(text, ',') from public.notes";
    for (claims, role, expected) in [
        (
            r#"{"sub": "11111111-0000-0000-0000-000000000000"}"#,
            "authenticated",
            Some("of one"),
        ),
        (
            r#"{"sub": "22222222-0000-0000-0000-000000000000"}"#,
            "authenticated",
            Some("of two"),
        ),
        ("{}", "authenticated", None),
        ("{}", "anon", None),
    ] {
        let admin = &database.admin;
        admin.batch_execute(&request(role, claims)).await.unwrap();
        assert_eq!(one(admin, seen).await.as_deref(), expected, "{claims}");
        admin.batch_execute("rollback").await.unwrap();
    }
}

#[tokio::test]
async fn storage_functions_split_paths_and_list_files() {
    let database = Database::on(&engine()).await;
    let tenant = &database.tenant;
    for (sql, expected) in [
        ("select storage.foldername('a/b/c.png')::text", "{a,b}"),
        ("select storage.foldername('c.png')::text", "{}"),
        ("select storage.filename('a/b/c.png')", "c.png"),
        ("select storage.extension('a/b/c.tar.gz')", "gz"),
    ] {
        assert_eq!(one(tenant, sql).await.as_deref(), Some(expected), "{sql}");
    }
    let setup = "
        insert into storage.buckets (id, name) values ('files', 'files');
        insert into storage.objects (bucket_id, name, metadata) values
            ('files', 'readme.txt', '{\"size\": 10}'), ('files', 'u/1/a.png', '{\"size\": 5}'),
            ('files', 'u/1/b.png', null), ('files', 'u/2%.png', null)";
    tenant.batch_execute(setup).await.unwrap();
    for (sql, expected) in [
        (
            "select string_agg(name || case when id is null then '/' else '' end, ' ') from storage.search('', 'files')",
            "u/ readme.txt",
        ),
        (
            "select string_agg(name, ' ') from storage.search('u/', 'files', 10, 2)",
            "1 2%.png",
        ),
        // Wildcards of LIKE in a path stand for themselves.
        (
            "select string_agg(name, ' ') from storage.search('u/', 'files', 10, 2, 0, '2%')",
            "2%.png",
        ),
        (
            "select string_agg(name, ' ') from storage.search('u/1/', 'files', 10, 3, 0, '', 'name', 'desc')",
            "b.png a.png",
        ),
        (
            "select string_agg(name, ' ') from storage.list_objects_with_delimiter('files', 'u/', '/')",
            "u/1/ u/2%.png",
        ),
        (
            "select string_agg(name, ' ') from storage.list_objects_with_delimiter('files', 'u/', '/', 10, 'u/1/')",
            "u/2%.png",
        ),
        (
            "select string_agg(name, ' ') from storage.search_v2('', 'files', 10, 1)",
            "readme.txt u/",
        ),
        (
            "select string_agg(name, ' ') from storage.search_v2('', 'files', 10, 1, 'readme.txt')",
            "u/",
        ),
        (
            "select string_agg(key, ' ') from storage.search_v2('u/1/', 'files', 10, 3, '', 'desc')",
            "b.png a.png",
        ),
        (
            "select size || ' ' || bucket_id from storage.get_size_by_bucket()",
            "15 files",
        ),
    ] {
        assert_eq!(one(tenant, sql).await.as_deref(), Some(expected), "{sql}");
    }
    assert_eq!(
        refusal(tenant, "delete from storage.objects").await,
        "42501"
    );
    let too_long = "insert into storage.buckets (id, name) values ('x', repeat('x', 101))";
    assert_eq!(refusal(tenant, too_long).await, "P0001");
    let tried = "select storage.can_insert_object('files', 'new.txt', null, '{}')";
    assert_eq!(refusal(tenant, tried).await, "PT200");
    assert_eq!(
        one(tenant, "select count(*) from storage.objects")
            .await
            .as_deref(),
        Some("4")
    );
    let operation = "begin; set local storage.operation = 'storage.object.list'";
    tenant.batch_execute(operation).await.unwrap();
    for (sql, expected) in [
        ("select storage.operation()", "storage.object.list"),
        ("select storage.allow_only_operation('object.list')", "t"),
        (
            "select storage.allow_any_operation(array['object.get', 'object.upload'])",
            "f",
        ),
    ] {
        assert_eq!(one(tenant, sql).await.as_deref(), Some(expected), "{sql}");
    }
    tenant.batch_execute("rollback").await.unwrap();
}

#[tokio::test]
async fn realtime_send_stores_messages_that_policies_of_topics_protect() {
    for database in Database::on_each().await {
        let (tenant, admin) = (&database.tenant, &database.admin);
        let setup = "
            create table public.rooms (id int primary key, name text);
            create function public.tell() returns trigger language plpgsql security definer as $$
            begin
                perform realtime.broadcast_changes('room:' || coalesce(new.id, old.id),
                    tg_op, tg_op, tg_table_name, tg_table_schema, new, old);
                return null;
            end $$;
            create trigger tell after insert or update or delete on public.rooms
                for each row execute function public.tell();
            create policy members on realtime.messages for select to authenticated
                using (realtime.topic() = 'room:1' and topic = 'room:1');
            insert into public.rooms values (1, 'first');
            update public.rooms set name = 'renamed';
            select realtime.send('{\"a\": 1}', 'hello', 'room:2', false)";
        tenant.batch_execute(setup).await.unwrap();
        let messages = "select string_agg(concat_ws(' ', topic, event, private, payload ->> 'operation', payload -> 'record' ->> 'name'), ',' order by inserted_at, topic, payload ->> 'operation') from realtime.messages";
        let messages = one(tenant, messages).await.unwrap();
        for expected in [
            "room:1 INSERT t INSERT first",
            "room:1 UPDATE t UPDATE renamed",
            "room:2 hello f",
        ] {
            assert!(messages.contains(expected), "{messages}");
        }
        for (topic, seen) in [("room:1", "2"), ("room:2", "0")] {
            let begin = format!(
                "{}set local realtime.topic = '{topic}'",
                request("authenticated", "{}")
            );
            admin.batch_execute(&begin).await.unwrap();
            assert_eq!(
                one(admin, "select count(*) from realtime.messages")
                    .await
                    .as_deref(),
                Some(seen)
            );
            admin.batch_execute("rollback").await.unwrap();
        }
    }
}

#[tokio::test]
async fn realtime_change_reaches_the_subscriptions_that_may_see_it() {
    let database = Database::on(&engine()).await;
    let setup = "
        create table public.tasks (id int primary key, owner uuid, title text, secret text);
        alter table public.tasks enable row level security;
        grant select (id, owner, title) on public.tasks to authenticated;
        create policy own on public.tasks for select to authenticated using (auth.uid() = owner);
        insert into public.tasks values (1, '11111111-0000-0000-0000-000000000000', 'mine', 'hidden')";
    database.tenant.batch_execute(setup).await.unwrap();
    let admin = &database.admin;
    let subscribe = |id: char, user: char, filter: &str| {
        format!(
            "insert into realtime.subscription (subscription_id, entity, filters, claims) values
             ('{id}{id}{id}{id}{id}{id}{id}{id}-0000-0000-0000-000000000000', 'public.tasks',
              array[{filter}]::realtime.user_defined_filter[],
              '{{\"role\": \"authenticated\", \"sub\": \"{user}{user}{user}{user}{user}{user}{user}{user}-0000-0000-0000-000000000000\"}}')"
        )
    };
    let matching = "('title', 'eq', 'mine', false)::realtime.user_defined_filter";
    let excluding = "('title', 'eq', 'mine', true)::realtime.user_defined_filter";
    for sql in [
        subscribe('a', '1', matching),
        subscribe('b', '2', ""),
        subscribe('c', '1', excluding),
    ] {
        admin.batch_execute(&sql).await.unwrap();
    }
    let unreadable = subscribe(
        'd',
        '1',
        "('secret', 'eq', 'x', false)::realtime.user_defined_filter",
    );
    assert_eq!(refusal(admin, &unreadable).await, "P0001");
    let change = r#"{"action": "I", "schema": "public", "table": "tasks", "timestamp": "2026-01-01 00:00:00+00",
        "columns": [{"name": "id", "type": "integer", "typeoid": 23, "value": 1},
                    {"name": "owner", "type": "uuid", "typeoid": 2950, "value": "11111111-0000-0000-0000-000000000000"},
                    {"name": "title", "type": "text", "typeoid": 25, "value": "mine"},
                    {"name": "secret", "type": "text", "typeoid": 25, "value": "hidden"}],
        "pk": [{"name": "id", "type": "integer", "typeoid": 23}]}"#;
    let answer = format!(
        "select subscription_ids::text || ' ' || (wal -> 'record')::text from realtime.apply_rls('{change}')"
    );
    assert_eq!(
        one(admin, &answer).await.unwrap(),
        r#"{aaaaaaaa-0000-0000-0000-000000000000} {"id": 1, "owner": "11111111-0000-0000-0000-000000000000", "title": "mine"}"#
    );
}

#[tokio::test]
async fn vault_keeps_secrets_sealed_with_a_key_outside_the_database() {
    for database in Database::on_each().await {
        let tenant = &database.tenant;
        let id = one(
            tenant,
            "select vault.create_secret('s3cret', 'api_key', 'of the mailer')",
        )
        .await
        .unwrap();
        let read = "select decrypted_secret from vault.decrypted_secrets where name = 'api_key'";
        assert_eq!(one(tenant, read).await.as_deref(), Some("s3cret"));
        let stored = one(tenant, "select secret from vault.secrets")
            .await
            .unwrap();
        assert!(!stored.contains("s3cret"));
        tenant
            .batch_execute(&format!(
                "select vault.update_secret('{id}', 'changed', new_description := 'new')"
            ))
            .await
            .unwrap();
        assert_eq!(one(tenant, read).await.as_deref(), Some("changed"));
        assert_eq!(
            one(tenant, "select description from vault.secrets")
                .await
                .as_deref(),
            Some("new")
        );
        assert_eq!(
            refusal(tenant, "select vault.create_secret('x', 'api_key')").await,
            "23505"
        );

        // A sealed value cannot be moved to another secret, and needs the file of this project.
        let other = one(tenant, "select vault.create_secret('other')")
            .await
            .unwrap();
        let admin = &database.admin;
        let moved = format!(
            "update vault.secrets set secret = (select secret from vault.secrets where id = '{id}') where id = '{other}'"
        );
        admin.batch_execute(&moved).await.unwrap();
        assert_eq!(
            refusal(tenant, "select * from vault.decrypted_secrets").await,
            "P0001"
        );
        tenant
            .batch_execute(&format!("delete from vault.secrets where id = '{other}'"))
            .await
            .unwrap();
        let data = database.machine.data(&database.project);
        let key = data.with_file_name("vault.key");
        let aside = data.with_file_name("vault.key.aside");
        std::fs::rename(&key, &aside).unwrap();
        assert_eq!(refusal(tenant, read).await, "58P01");
        std::fs::rename(&aside, &key).unwrap();
    }
}

#[tokio::test]
async fn changed_schema_is_announced_to_postgrest() {
    let database = Database::on(&engine()).await;
    let (client, mut connection) = database
        .machine
        .config(&database.project, "postgres")
        .connect(tokio_postgres::NoTls)
        .await
        .unwrap();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                let _ = told.send(note.payload().to_owned());
            }
        }
    });
    client.batch_execute("listen pgrst").await.unwrap();
    for sql in [
        "create table public.t (id int)",
        "alter table public.t add column x int",
        "drop table public.t",
    ] {
        database.tenant.batch_execute(sql).await.unwrap();
        assert_eq!(
            heard.recv().await.as_deref(),
            Some("reload schema"),
            "{sql}"
        );
    }
    // Temporary tables are not served.
    database
        .tenant
        .batch_execute("create temporary table t (id int); drop table t")
        .await
        .unwrap();
    client.batch_execute("notify pgrst, 'end'").await.unwrap();
    assert_eq!(heard.recv().await.as_deref(), Some("end"));
}
