-- Why: a branch is a project of its own, made from another. Its row says from which, and how far the two have gone apart. The
-- default branch stands for the parent itself; a project that has one has branching switched on.

create table branches (
    id                    uuid        primary key,
    -- The project that the branch is; for the default branch, the parent.
    project_id            bigint      not null unique references projects,
    parent_id             bigint      not null references projects,
    name                  text        not null check (length(name) between 1 and 200),
    git_branch            text,
    is_default            boolean     not null default false,
    persistent            boolean     not null default false,
    with_data             boolean     not null default false,
    status                text        not null check (status in
        ('CREATING_PROJECT', 'RUNNING_MIGRATIONS', 'MIGRATIONS_PASSED', 'MIGRATIONS_FAILED', 'FUNCTIONS_DEPLOYED', 'FUNCTIONS_FAILED')),
    notify_url            text,
    -- Versions of migrations that both had when the branch was made, last reset or last merged.
    fork                  text[]      not null default '{}',
    -- What a copy of the parent's data was isolated from, and where in its WAL it ends.
    copy_report           jsonb,
    review_requested_at   timestamptz,
    deletion_scheduled_at timestamptz,
    -- When a branch that is not persistent ends.
    expires_at            timestamptz,
    created_at            timestamptz not null,
    updated_at            timestamptz not null,
    constraint branches_name_key unique (parent_id, name),
    check (is_default = (project_id = parent_id))
);
create unique index branches_git_branch_key on branches (parent_id, git_branch);
create index branches_ending_idx on branches (least(deletion_scheduled_at, expires_at))
    where deletion_scheduled_at is not null or expires_at is not null;

create trigger branches_announce after insert or update or delete on branches for each statement execute function announce();

alter table projects
    -- The project whose running cluster the new cluster is copied from; null for an empty one.
    add column copy_of bigint,
    -- Whether the cluster is thrown away and made anew.
    add column rebuild boolean not null default false;
