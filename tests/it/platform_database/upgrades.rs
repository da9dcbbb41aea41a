//! Projects from before the platform's schemas.

use super::{Database, conformance::missing, one};

/// Removes the platform, as a project had none in earlier versions.
const WITHOUT_PLATFORM: &str = "
    do $$
    declare
        found record;
    begin
        for found in select evtname as name from pg_event_trigger loop
            execute format('drop event trigger %I', found.name);
        end loop;
        drop publication supabase_realtime, supabase_realtime_messages_publication;
        drop schema auth, storage, realtime, vault, graphql, graphql_public, pgbouncer, _realtime,
            supabase_functions, supabase_migrations cascade;
        drop extension pgcrypto, \"uuid-ossp\";
        for found in
            select rolname as name from pg_roles
            where shobj_description(oid, 'pg_authid') = 'Role of the platform'
        loop
            execute format('drop owned by %I cascade', found.name);
            execute format('drop role %I', found.name);
        end loop;
    end
    $$";

#[tokio::test]
async fn project_of_an_earlier_version_gets_the_platform() {
    for database in Database::on_each().await {
        let admin = &database.admin;
        admin.batch_execute(WITHOUT_PLATFORM).await.unwrap();
        // The tenant has created the extension elsewhere.
        database
            .tenant
            .batch_execute("create extension pgcrypto schema public")
            .await
            .unwrap();
        for _ in 0..2 {
            let conflicts = database.apply_platform().await;
            assert_eq!(conflicts, []);
            let missing: Vec<_> = missing(admin, database.major)
                .await
                .into_iter()
                .filter(|fact| *fact != "extension pgcrypto extensions")
                .collect();
            assert!(missing.is_empty(), "{missing:#?}");
        }
        let kept = "select extnamespace::regnamespace from pg_extension where extname = 'pgcrypto'";
        assert_eq!(one(admin, kept).await.as_deref(), Some("public"));
    }
}

#[tokio::test]
async fn objects_of_the_tenant_are_reported_and_left_alone() {
    for database in Database::on_each().await {
        let (admin, tenant) = (&database.admin, &database.tenant);
        admin.batch_execute(WITHOUT_PLATFORM).await.unwrap();
        let own = "create schema auth; create table auth.users (login text); insert into auth.users values ('mine')";
        tenant.batch_execute(own).await.unwrap();
        let conflicts = database.apply_platform().await;
        let texts: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
        assert!(
            texts.contains(&"auth: schema auth belongs to role postgres; rename it".to_owned()),
            "{texts:?}"
        );
        assert_eq!(
            one(tenant, "select login from auth.users").await.as_deref(),
            Some("mine")
        );

        tenant
            .batch_execute("alter schema auth rename to own_auth")
            .await
            .unwrap();
        assert_eq!(database.apply_platform().await, []);
        let missing = missing(admin, database.major).await;
        assert!(missing.is_empty(), "{missing:#?}");

        // In a schema of the platform, where the tenant may create objects too.
        let replaced = "drop function storage.search_v2, storage.search_by_timestamp cascade";
        admin.batch_execute(replaced).await.unwrap();
        let own = "create function storage.search_by_timestamp(text, text, integer, integer, text, text, text, text) \
                   returns integer language sql as 'select 1'";
        tenant.batch_execute(own).await.unwrap();
        let conflicts = database.apply_platform().await;
        assert_eq!(conflicts.len(), 1, "{conflicts:?}");
        assert_eq!(conflicts[0].part, "storage");
        let left = "select storage.search_by_timestamp('', '', 1, 1, '', '', '', '')";
        assert_eq!(one(tenant, left).await.as_deref(), Some("1"));
    }
}

#[tokio::test]
async fn role_of_the_tenant_is_reported_and_left_alone() {
    for database in Database::on_each().await {
        let admin = &database.admin;
        admin.batch_execute(WITHOUT_PLATFORM).await.unwrap();
        admin
            .batch_execute("create role supabase_auth_admin nologin")
            .await
            .unwrap();
        let conflicts = database.apply_platform().await;
        assert_eq!(
            conflicts[0].to_string(),
            "roles: role supabase_auth_admin exists and does not belong to the platform"
        );
        let login = "select rolcanlogin from pg_roles where rolname = 'supabase_auth_admin'";
        assert_eq!(one(admin, login).await.as_deref(), Some("f"));
    }
}

/// The storage service finds the row of a migration by its position.
#[tokio::test]
async fn recorded_migrations_of_storage_are_in_order_after_an_upgrade() {
    let database = Database::on(&crate::support::machine::engine()).await;
    let admin = &database.admin;
    let position = "select count(*) from (
            select id, row_number() over () - 1 as position from storage.migrations
        ) as listed where id <> position";
    let digests = "select string_agg(hash, ',' order by id) from storage.migrations";
    assert_eq!(one(admin, position).await.as_deref(), Some("0"));
    let recorded = one(admin, digests).await;
    // As an earlier version of the platform recorded them.
    let earlier = "delete from storage.migrations where id = 0;
        update storage.migrations set hash = repeat('0', 40)";
    admin.batch_execute(earlier).await.unwrap();
    for _ in 0..2 {
        database.apply_platform().await;
        assert_eq!(one(admin, position).await.as_deref(), Some("0"));
        assert_eq!(one(admin, digests).await, recorded);
    }
}
