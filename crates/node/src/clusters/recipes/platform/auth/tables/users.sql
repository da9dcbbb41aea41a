-- Users of the project, one row each. Passwords are stored as hashes.
create table auth.users (
    instance_id uuid,
    id uuid not null,
    aud varchar(255),
    role varchar(255),
    email varchar(255),
    encrypted_password varchar(255),
    email_confirmed_at timestamptz,
    invited_at timestamptz,
    confirmation_token varchar(255),
    confirmation_sent_at timestamptz,
    recovery_token varchar(255),
    recovery_sent_at timestamptz,
    email_change_token_new varchar(255),
    email_change varchar(255),
    email_change_sent_at timestamptz,
    last_sign_in_at timestamptz,
    raw_app_meta_data jsonb,
    raw_user_meta_data jsonb,
    is_super_admin boolean,
    created_at timestamptz,
    updated_at timestamptz,
    phone text default null::varchar,
    phone_confirmed_at timestamptz,
    phone_change text default ''::varchar,
    phone_change_token varchar(255) default ''::varchar,
    phone_change_sent_at timestamptz,
    confirmed_at timestamptz generated always as (least(email_confirmed_at, phone_confirmed_at)) stored,
    email_change_token_current varchar(255) default ''::varchar,
    email_change_confirm_status smallint default 0,
    banned_until timestamptz,
    reauthentication_token varchar(255) default ''::varchar,
    reauthentication_sent_at timestamptz,
    is_sso_user boolean default false not null,
    deleted_at timestamptz,
    is_anonymous boolean default false not null,
    constraint users_pkey primary key (id),
    constraint users_phone_key unique (phone),
    constraint users_email_change_confirm_status_check check ((email_change_confirm_status >= 0) and (email_change_confirm_status <= 2))
);
create unique index confirmation_token_idx on auth.users (confirmation_token) where (confirmation_token)::text !~ '^[0-9 ]*$'::text;
create unique index email_change_token_current_idx on auth.users (email_change_token_current) where (email_change_token_current)::text !~ '^[0-9 ]*$'::text;
create unique index email_change_token_new_idx on auth.users (email_change_token_new) where (email_change_token_new)::text !~ '^[0-9 ]*$'::text;
create unique index reauthentication_token_idx on auth.users (reauthentication_token) where (reauthentication_token)::text !~ '^[0-9 ]*$'::text;
create unique index recovery_token_idx on auth.users (recovery_token) where (recovery_token)::text !~ '^[0-9 ]*$'::text;
create unique index users_email_partial_key on auth.users (email) where is_sso_user = false;
create index users_instance_id_email_idx on auth.users (instance_id, lower(email::text));
create index users_instance_id_idx on auth.users (instance_id);
create index users_is_anonymous_idx on auth.users (is_anonymous);

alter table auth.users owner to supabase_auth_admin;
alter table auth.users enable row level security;
grant all on auth.users to postgres, dashboard_user;
grant select on auth.users to postgres with grant option;
comment on table auth.users is 'Users of the project, one row each. Passwords are stored as hashes';
