-- Migrations that the realtime service's migrator finds applied.
create table realtime.schema_migrations (
    version bigint not null,
    inserted_at timestamp(0) default now(),
    constraint schema_migrations_pkey primary key (version)
);

comment on table realtime.schema_migrations is 'Migrations that the realtime service''s migrator finds applied';
