-- Second factors of users: TOTP, phone, WebAuthn.
create table auth.mfa_factors (
    id uuid not null,
    user_id uuid not null,
    friendly_name text,
    factor_type auth.factor_type not null,
    status auth.factor_status not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    secret text,
    phone text,
    last_challenged_at timestamptz,
    web_authn_credential jsonb,
    web_authn_aaguid uuid,
    last_webauthn_challenge_data jsonb,
    constraint mfa_factors_pkey primary key (id),
    constraint mfa_factors_last_challenged_at_key unique (last_challenged_at),
    constraint mfa_factors_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade
);
create index factor_id_created_at_idx on auth.mfa_factors (user_id, created_at);
create unique index mfa_factors_user_friendly_name_unique on auth.mfa_factors (friendly_name, user_id) where TRIM(BOTH FROM friendly_name) <> ''::text;
create index mfa_factors_user_id_idx on auth.mfa_factors (user_id);
create unique index unique_phone_factor_per_user on auth.mfa_factors (user_id, phone);

alter table auth.mfa_factors owner to supabase_auth_admin;
alter table auth.mfa_factors enable row level security;
grant all on auth.mfa_factors to postgres, dashboard_user;
grant select on auth.mfa_factors to postgres with grant option;
comment on table auth.mfa_factors is 'Second factors of users: TOTP, phone, WebAuthn';
