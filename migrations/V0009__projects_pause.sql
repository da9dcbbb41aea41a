-- Why: a project can be paused, restored and restarted. What is wanted gets a third value; each wish gets a number, so that
-- what was begun for an earlier one cannot overwrite a later one; and a server that keeps dying is started ever less often.

alter table projects
    drop constraint projects_desired_check,
    drop constraint projects_status_check,
    drop constraint projects_check,
    -- Counts what was asked for. Whoever writes down an outcome names the number it is the outcome of.
    add column generation bigint not null default 0,
    -- When it was last announced healthy, and how often in a row the server died soon after that.
    add column settled_at timestamptz,
    add column falls integer not null default 0,
    add constraint projects_desired_check check (desired in ('active', 'paused', 'removed')),
    add constraint projects_status_check check (case desired
        when 'active' then status in ('COMING_UP', 'INIT_FAILED', 'ACTIVE_HEALTHY', 'ACTIVE_UNHEALTHY', 'RESTORING', 'RESTORE_FAILED', 'RESTARTING')
        when 'paused' then status in ('PAUSING', 'INACTIVE', 'PAUSE_FAILED')
        when 'removed' then status in ('GOING_DOWN', 'REMOVED')
    end);

-- A paused project keeps its name, and nothing is to be done for it.
drop index projects_name_key;
create unique index projects_name_key on projects (organization_id, name) where desired <> 'removed';
drop index projects_organization_id_idx;
create index projects_organization_id_idx on projects (organization_id) where desired <> 'removed';
drop index projects_unsettled_idx;
create index projects_unsettled_idx on projects (node, not_before)
    where status not in ('ACTIVE_HEALTHY', 'INACTIVE', 'REMOVED') or (status = 'ACTIVE_HEALTHY' and password_verifier is not null);
