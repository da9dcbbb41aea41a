-- Public keys of passkeys.
create table auth.webauthn_credentials (
    id uuid default gen_random_uuid() not null,
    user_id uuid not null,
    credential_id bytea not null,
    public_key bytea not null,
    attestation_type text default ''::text not null,
    aaguid uuid,
    sign_count bigint default 0 not null,
    transports jsonb default '[]'::jsonb not null,
    backup_eligible boolean default false not null,
    backed_up boolean default false not null,
    friendly_name text default ''::text not null,
    created_at timestamptz default now() not null,
    updated_at timestamptz default now() not null,
    last_used_at timestamptz,
    constraint webauthn_credentials_pkey primary key (id),
    constraint webauthn_credentials_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade
);
create unique index webauthn_credentials_credential_id_key on auth.webauthn_credentials (credential_id);
create index webauthn_credentials_user_id_idx on auth.webauthn_credentials (user_id);

alter table auth.webauthn_credentials owner to supabase_auth_admin;
grant all on auth.webauthn_credentials to postgres, dashboard_user;
comment on table auth.webauthn_credentials is 'Public keys of passkeys';
