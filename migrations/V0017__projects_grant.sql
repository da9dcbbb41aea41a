-- Why: what the roles of a project may do changes with the version of Gantry. Projects from an older one are given the same, when
-- their servers are next started or at once if they run.

alter table projects
    -- Which grants the cluster has; null for a project from before this column.
    add column grants text,
    -- Others than this node's version gives.
    add column outdated boolean not null default false;

drop index projects_unsettled_idx;
create index projects_unsettled_idx on projects (node, not_before)
    where status not in ('ACTIVE_HEALTHY', 'INACTIVE', 'REMOVED') or (status = 'ACTIVE_HEALTHY' and (password_verifier is not null or outdated));
