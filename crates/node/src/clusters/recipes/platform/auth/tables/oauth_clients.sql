-- OAuth clients, for which this project is the provider.
create table auth.oauth_clients (
    id uuid not null,
    client_secret_hash text,
    registration_type auth.oauth_registration_type not null,
    redirect_uris text not null,
    grant_types text not null,
    client_name text,
    client_uri text,
    logo_uri text,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    deleted_at timestamptz,
    client_type auth.oauth_client_type default 'confidential'::auth.oauth_client_type not null,
    token_endpoint_auth_method text not null,
    constraint oauth_clients_pkey primary key (id),
    constraint oauth_clients_client_name_length check (char_length(client_name) <= 1024),
    constraint oauth_clients_client_uri_length check (char_length(client_uri) <= 2048),
    constraint oauth_clients_logo_uri_length check (char_length(logo_uri) <= 2048),
    constraint oauth_clients_token_endpoint_auth_method_check check (token_endpoint_auth_method = any (array['client_secret_basic'::text, 'client_secret_post'::text, 'none'::text]))
);
create index oauth_clients_deleted_at_idx on auth.oauth_clients (deleted_at);

alter table auth.oauth_clients owner to supabase_auth_admin;
grant all on auth.oauth_clients to postgres, dashboard_user;
comment on table auth.oauth_clients is 'OAuth clients, for which this project is the provider';
