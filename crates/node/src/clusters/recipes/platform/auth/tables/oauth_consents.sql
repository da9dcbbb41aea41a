-- Scopes that users granted to OAuth clients.
create table auth.oauth_consents (
    id uuid not null,
    user_id uuid not null,
    client_id uuid not null,
    scopes text not null,
    granted_at timestamptz default now() not null,
    revoked_at timestamptz,
    constraint oauth_consents_pkey primary key (id),
    constraint oauth_consents_user_client_unique unique (user_id, client_id),
    constraint oauth_consents_client_id_fkey foreign key (client_id) references auth.oauth_clients (id) on delete cascade,
    constraint oauth_consents_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade,
    constraint oauth_consents_revoked_after_granted check ((revoked_at is null) or (revoked_at >= granted_at)),
    constraint oauth_consents_scopes_length check (char_length(scopes) <= 2048),
    constraint oauth_consents_scopes_not_empty check (char_length(TRIM(BOTH FROM scopes)) > 0)
);
create index oauth_consents_active_client_idx on auth.oauth_consents (client_id) where revoked_at is null;
create index oauth_consents_active_user_client_idx on auth.oauth_consents (user_id, client_id) where revoked_at is null;
create index oauth_consents_user_order_idx on auth.oauth_consents (user_id, granted_at);

alter table auth.oauth_consents owner to supabase_auth_admin;
grant all on auth.oauth_consents to postgres, dashboard_user;
comment on table auth.oauth_consents is 'Scopes that users granted to OAuth clients';
