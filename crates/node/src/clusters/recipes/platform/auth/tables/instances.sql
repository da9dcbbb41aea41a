-- Instances of the auth service that share this database.
create table auth.instances (
    id uuid not null,
    uuid uuid,
    raw_base_config text,
    created_at timestamptz,
    updated_at timestamptz,
    constraint instances_pkey primary key (id)
);

alter table auth.instances owner to supabase_auth_admin;
alter table auth.instances enable row level security;
grant all on auth.instances to postgres, dashboard_user;
grant select on auth.instances to postgres with grant option;
comment on table auth.instances is 'Instances of the auth service that share this database';
