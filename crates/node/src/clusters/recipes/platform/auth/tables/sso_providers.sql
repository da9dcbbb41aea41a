-- SSO providers.
create table auth.sso_providers (
    id uuid not null,
    resource_id text,
    created_at timestamptz,
    updated_at timestamptz,
    disabled boolean,
    constraint sso_providers_pkey primary key (id),
    constraint "resource_id not empty" check ((resource_id = null::text) or (char_length(resource_id) > 0))
);
create unique index sso_providers_resource_id_idx on auth.sso_providers (lower(resource_id));
create index sso_providers_resource_id_pattern_idx on auth.sso_providers (resource_id);

alter table auth.sso_providers owner to supabase_auth_admin;
alter table auth.sso_providers enable row level security;
grant all on auth.sso_providers to postgres, dashboard_user;
grant select on auth.sso_providers to postgres with grant option;
comment on table auth.sso_providers is 'SSO providers';
