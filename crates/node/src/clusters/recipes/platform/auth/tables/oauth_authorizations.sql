-- Authorization requests of OAuth clients, for which this project is the provider.
create table auth.oauth_authorizations (
    id uuid not null,
    authorization_id text not null,
    client_id uuid not null,
    user_id uuid,
    redirect_uri text not null,
    scope text not null,
    state text,
    resource text,
    code_challenge text,
    code_challenge_method auth.code_challenge_method,
    response_type auth.oauth_response_type default 'code'::auth.oauth_response_type not null,
    status auth.oauth_authorization_status default 'pending'::auth.oauth_authorization_status not null,
    authorization_code text,
    created_at timestamptz default now() not null,
    expires_at timestamptz default (now() + '00:03:00'::interval) not null,
    approved_at timestamptz,
    nonce text,
    constraint oauth_authorizations_pkey primary key (id),
    constraint oauth_authorizations_authorization_code_key unique (authorization_code),
    constraint oauth_authorizations_authorization_id_key unique (authorization_id),
    constraint oauth_authorizations_client_id_fkey foreign key (client_id) references auth.oauth_clients (id) on delete cascade,
    constraint oauth_authorizations_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade,
    constraint oauth_authorizations_authorization_code_length check (char_length(authorization_code) <= 255),
    constraint oauth_authorizations_code_challenge_length check (char_length(code_challenge) <= 128),
    constraint oauth_authorizations_expires_at_future check (expires_at > created_at),
    constraint oauth_authorizations_nonce_length check (char_length(nonce) <= 255),
    constraint oauth_authorizations_redirect_uri_length check (char_length(redirect_uri) <= 2048),
    constraint oauth_authorizations_resource_length check (char_length(resource) <= 2048),
    constraint oauth_authorizations_scope_length check (char_length(scope) <= 4096),
    constraint oauth_authorizations_state_length check (char_length(state) <= 4096)
);
create index oauth_auth_pending_exp_idx on auth.oauth_authorizations (expires_at) where status = 'pending'::auth.oauth_authorization_status;

alter table auth.oauth_authorizations owner to supabase_auth_admin;
grant all on auth.oauth_authorizations to postgres, dashboard_user;
comment on table auth.oauth_authorizations is 'Authorization requests of OAuth clients, for which this project is the provider';
