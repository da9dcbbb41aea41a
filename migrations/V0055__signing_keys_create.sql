-- Why: projects sign tokens of their users with keys of their own, which the Data API and the edge must know. A key is created in
-- standby, becomes the one in use by a rotation, and stays trusted afterwards until it is revoked.

create table signing_keys (
    id         uuid        primary key,
    project_id bigint      not null references projects,
    algorithm  text        not null check (algorithm in ('ES256', 'RS256', 'HS256')),
    state      text        not null check (state in ('standby', 'in_use', 'previously_used', 'revoked')),
    public_jwk jsonb       check ((public_jwk is null) = (algorithm = 'HS256')),
    sealed     bytea       not null,
    created_at timestamptz not null,
    updated_at timestamptz not null
);

create unique index signing_keys_one_standby on signing_keys (project_id) where state = 'standby';
create unique index signing_keys_one_in_use  on signing_keys (project_id) where state = 'in_use';
create index signing_keys_project on signing_keys (project_id);

create trigger signing_keys_announce after insert or update or delete on signing_keys for each statement execute function announce();
