-- Why: somebody from outside is let into one database for a time, without becoming a member who sees the organization.

create table jit_invitations (
    id         uuid        primary key,
    project_id bigint      not null references projects,
    -- Only an account with this address can accept.
    email      text        not null,
    -- SHA-256 of what the invited person shows. Shown once to who invites, and kept nowhere.
    digest     bytea       not null constraint jit_invitations_digest_key unique check (length(digest) = 32),
    -- What is granted to whoever accepts.
    grants     jsonb       not null,
    -- Who accepted. Only this one can do so again, which renews the logins.
    user_id    bigint      references users on delete cascade,
    created_at timestamptz not null,
    expires_at timestamptz not null
);
-- A second invitation takes the place of the first.
create unique index jit_invitations_email_key on jit_invitations (project_id, lower(email));
create index jit_invitations_user_id_idx on jit_invitations (user_id);

alter table jit_grants
    -- What is granted to a member goes with the membership, to others with the invitation.
    alter column organization_id drop not null,
    add column invitation_id uuid references jit_invitations on delete cascade,
    add constraint jit_grants_basis_check check ((organization_id is null) = (invitation_id is not null));
create index jit_grants_invitation_id_idx on jit_grants (invitation_id);
