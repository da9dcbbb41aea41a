-- Identities of users at providers; a user may have several.
create table auth.identities (
    provider_id text not null,
    user_id uuid not null,
    identity_data jsonb not null,
    provider text not null,
    last_sign_in_at timestamptz,
    created_at timestamptz,
    updated_at timestamptz,
    email text generated always as (lower((identity_data ->> 'email'::text))) stored,
    id uuid default gen_random_uuid() not null,
    constraint identities_pkey primary key (id),
    constraint identities_provider_id_provider_unique unique (provider_id, provider),
    constraint identities_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade
);
create index identities_email_idx on auth.identities (email);
create index identities_user_id_idx on auth.identities (user_id);

alter table auth.identities owner to supabase_auth_admin;
alter table auth.identities enable row level security;
grant all on auth.identities to postgres, dashboard_user;
grant select on auth.identities to postgres with grant option;
comment on table auth.identities is 'Identities of users at providers; a user may have several';
