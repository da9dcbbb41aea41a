-- Migrations that the storage service's migrator finds applied.
create table storage.migrations (
    id integer not null,
    name varchar(100) not null,
    hash varchar(40) not null,
    executed_at timestamp default current_timestamp,
    constraint migrations_pkey primary key (id),
    constraint migrations_name_key unique (name)
);

alter table storage.migrations owner to supabase_storage_admin;
alter table storage.migrations enable row level security;
grant all on storage.migrations to postgres, service_role, anon, authenticated;
comment on table storage.migrations is 'Migrations that the storage service''s migrator finds applied';
