-- Why: a member may be given a role on some projects only, on top of the one in the organization, or of none there; and
-- people are invited before they are members.

alter table members drop constraint members_role_check;
alter table members add constraint members_role_check check (role in ('owner', 'administrator', 'developer', 'read-only', 'no-access'));

create table project_roles (
    organization_id bigint      not null,
    user_id         bigint      not null,
    project_id      bigint      not null references projects on delete cascade,
    role            text        not null check (role in ('owner', 'administrator', 'developer', 'read-only')),
    created_at      timestamptz not null,
    primary key (user_id, project_id),
    -- Who is no member any more has no role on a project either.
    foreign key (organization_id, user_id) references members on delete cascade
);
create index project_roles_member_idx on project_roles (organization_id, user_id);
create index project_roles_project_id_idx on project_roles (project_id);
create trigger project_roles_announce after insert or update or delete on project_roles for each statement execute function announce();

create table invitations (
    id              bigint generated always as identity primary key,
    organization_id bigint      not null references organizations on delete cascade,
    email           text        not null,
    role            text        not null check (role in ('owner', 'administrator', 'developer', 'read-only', 'no-access')),
    -- Rows of `projects` on which the role is given; in the whole organization, if empty.
    projects        bigint[]    not null,
    -- SHA-256 of what the invited person shows. Shown once to who invites, and kept nowhere.
    digest          bytea       not null constraint invitations_digest_key unique check (length(digest) = 32),
    invited_by      bigint      not null references users on delete cascade,
    created_at      timestamptz not null,
    expires_at      timestamptz not null
);
-- A second invitation takes the place of the first.
create unique index invitations_email_key on invitations (organization_id, lower(email));
