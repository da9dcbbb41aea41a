-- Challenges of second factors that are issued for verification.
create table auth.mfa_challenges (
    id uuid not null,
    factor_id uuid not null,
    created_at timestamptz not null,
    verified_at timestamptz,
    ip_address inet not null,
    otp_code text,
    web_authn_session_data jsonb,
    constraint mfa_challenges_pkey primary key (id),
    constraint mfa_challenges_auth_factor_id_fkey foreign key (factor_id) references auth.mfa_factors (id) on delete cascade
);
create index mfa_challenge_created_at_idx on auth.mfa_challenges (created_at);

alter table auth.mfa_challenges owner to supabase_auth_admin;
alter table auth.mfa_challenges enable row level security;
grant all on auth.mfa_challenges to postgres, dashboard_user;
grant select on auth.mfa_challenges to postgres with grant option;
comment on table auth.mfa_challenges is 'Challenges of second factors that are issued for verification';
