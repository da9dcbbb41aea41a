-- Challenges of passkey registrations and sign-ins.
create table auth.webauthn_challenges (
    id uuid default gen_random_uuid() not null,
    user_id uuid,
    challenge_type text not null,
    session_data jsonb not null,
    created_at timestamptz default now() not null,
    expires_at timestamptz not null,
    constraint webauthn_challenges_pkey primary key (id),
    constraint webauthn_challenges_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade,
    constraint webauthn_challenges_challenge_type_check check (challenge_type = any (array['signup'::text, 'registration'::text, 'authentication'::text]))
);
create index webauthn_challenges_expires_at_idx on auth.webauthn_challenges (expires_at);
create index webauthn_challenges_user_id_idx on auth.webauthn_challenges (user_id);

alter table auth.webauthn_challenges owner to supabase_auth_admin;
grant all on auth.webauthn_challenges to postgres, dashboard_user;
comment on table auth.webauthn_challenges is 'Challenges of passkey registrations and sign-ins';
