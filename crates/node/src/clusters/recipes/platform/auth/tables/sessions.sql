-- Sessions of users.
create table auth.sessions (
    id uuid not null,
    user_id uuid not null,
    created_at timestamptz,
    updated_at timestamptz,
    factor_id uuid,
    aal auth.aal_level,
    not_after timestamptz,
    refreshed_at timestamp,
    user_agent text,
    ip inet,
    tag text,
    oauth_client_id uuid,
    refresh_token_hmac_key text,
    refresh_token_counter bigint,
    scopes text,
    constraint sessions_pkey primary key (id),
    constraint sessions_oauth_client_id_fkey foreign key (oauth_client_id) references auth.oauth_clients (id) on delete cascade,
    constraint sessions_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade,
    constraint sessions_scopes_length check (char_length(scopes) <= 4096)
);
create index sessions_not_after_idx on auth.sessions (not_after);
create index sessions_oauth_client_id_idx on auth.sessions (oauth_client_id);
create index sessions_user_id_idx on auth.sessions (user_id);
create index user_id_created_at_idx on auth.sessions (user_id, created_at);

alter table auth.sessions owner to supabase_auth_admin;
alter table auth.sessions enable row level security;
grant all on auth.sessions to postgres, dashboard_user;
grant select on auth.sessions to postgres with grant option;
comment on table auth.sessions is 'Sessions of users';
