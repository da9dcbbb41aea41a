-- State of sign-ins at external OAuth providers between redirect and callback.
create table auth.oauth_client_states (
    id uuid not null,
    provider_type text not null,
    code_verifier text,
    created_at timestamptz not null,
    constraint oauth_client_states_pkey primary key (id)
);
create index idx_oauth_client_states_created_at on auth.oauth_client_states (created_at);

alter table auth.oauth_client_states owner to supabase_auth_admin;
grant all on auth.oauth_client_states to postgres, dashboard_user;
comment on table auth.oauth_client_states is 'State of sign-ins at external OAuth providers between redirect and callback';
