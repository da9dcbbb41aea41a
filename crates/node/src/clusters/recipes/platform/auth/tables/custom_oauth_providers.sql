-- OAuth 2.0 and OpenID Connect providers that the project adds to the built-in ones.
create table auth.custom_oauth_providers (
    id uuid default gen_random_uuid() not null,
    provider_type text not null,
    identifier text not null,
    name text not null,
    client_id text not null,
    client_secret text not null,
    acceptable_client_ids text[] default '{}'::text[] not null,
    scopes text[] default '{}'::text[] not null,
    pkce_enabled boolean default true not null,
    attribute_mapping jsonb default '{}'::jsonb not null,
    authorization_params jsonb default '{}'::jsonb not null,
    enabled boolean default true not null,
    email_optional boolean default false not null,
    issuer text,
    discovery_url text,
    skip_nonce_check boolean default false not null,
    cached_discovery jsonb,
    discovery_cached_at timestamptz,
    authorization_url text,
    token_url text,
    userinfo_url text,
    jwks_uri text,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    custom_claims_allowlist text[] default '{}'::text[] not null,
    constraint custom_oauth_providers_pkey primary key (id),
    constraint custom_oauth_providers_identifier_key unique (identifier),
    constraint custom_oauth_providers_authorization_url_https check ((authorization_url is null) or (authorization_url ~~ 'https://%'::text)),
    constraint custom_oauth_providers_authorization_url_length check ((authorization_url is null) or (char_length(authorization_url) <= 2048)),
    constraint custom_oauth_providers_client_id_length check ((char_length(client_id) >= 1) and (char_length(client_id) <= 512)),
    constraint custom_oauth_providers_discovery_url_length check ((discovery_url is null) or (char_length(discovery_url) <= 2048)),
    constraint custom_oauth_providers_identifier_format check (identifier ~ '^[a-z0-9][a-z0-9:-]{0,48}[a-z0-9]$'::text),
    constraint custom_oauth_providers_issuer_length check ((issuer is null) or ((char_length(issuer) >= 1) and (char_length(issuer) <= 2048))),
    constraint custom_oauth_providers_jwks_uri_https check ((jwks_uri is null) or (jwks_uri ~~ 'https://%'::text)),
    constraint custom_oauth_providers_jwks_uri_length check ((jwks_uri is null) or (char_length(jwks_uri) <= 2048)),
    constraint custom_oauth_providers_name_length check ((char_length(name) >= 1) and (char_length(name) <= 100)),
    constraint custom_oauth_providers_oauth2_requires_endpoints check ((provider_type <> 'oauth2'::text) or ((authorization_url is not null) and (token_url is not null) and (userinfo_url is not null))),
    constraint custom_oauth_providers_oidc_discovery_url_https check ((provider_type <> 'oidc'::text) or (discovery_url is null) or (discovery_url ~~ 'https://%'::text)),
    constraint custom_oauth_providers_oidc_issuer_https check ((provider_type <> 'oidc'::text) or (issuer is null) or (issuer ~~ 'https://%'::text)),
    constraint custom_oauth_providers_oidc_requires_issuer check ((provider_type <> 'oidc'::text) or (issuer is not null)),
    constraint custom_oauth_providers_provider_type_check check (provider_type = any (array['oauth2'::text, 'oidc'::text])),
    constraint custom_oauth_providers_token_url_https check ((token_url is null) or (token_url ~~ 'https://%'::text)),
    constraint custom_oauth_providers_token_url_length check ((token_url is null) or (char_length(token_url) <= 2048)),
    constraint custom_oauth_providers_userinfo_url_https check ((userinfo_url is null) or (userinfo_url ~~ 'https://%'::text)),
    constraint custom_oauth_providers_userinfo_url_length check ((userinfo_url is null) or (char_length(userinfo_url) <= 2048))
);
create index custom_oauth_providers_created_at_idx on auth.custom_oauth_providers (created_at);
create index custom_oauth_providers_enabled_idx on auth.custom_oauth_providers (enabled);
create index custom_oauth_providers_identifier_idx on auth.custom_oauth_providers (identifier);
create index custom_oauth_providers_provider_type_idx on auth.custom_oauth_providers (provider_type);

alter table auth.custom_oauth_providers owner to supabase_auth_admin;
grant all on auth.custom_oauth_providers to postgres, dashboard_user;
comment on table auth.custom_oauth_providers is 'OAuth 2.0 and OpenID Connect providers that the project adds to the built-in ones';
