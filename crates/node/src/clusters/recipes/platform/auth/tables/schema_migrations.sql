-- Migrations that the auth service's migrator finds applied.
create table auth.schema_migrations (
    version varchar(255) not null,
    constraint schema_migrations_pkey primary key (version)
);

alter table auth.schema_migrations owner to supabase_auth_admin;
alter table auth.schema_migrations enable row level security;
grant all on auth.schema_migrations to postgres, dashboard_user;
grant select on auth.schema_migrations to postgres with grant option;
comment on table auth.schema_migrations is 'Migrations that the auth service''s migrator finds applied';
