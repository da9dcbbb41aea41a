-- Why: a project's server may be given other settings, and may sleep while nobody uses it. Both are wishes that the reconciler
-- carries out, so that what was asked for is done whatever is killed meanwhile.

alter table projects
    -- Settings that differ from ours, by PostgreSQL's names.
    add column settings jsonb not null default '{}',
    -- Those before, until the server runs with the new ones: what it goes back to if it does not.
    add column settings_before jsonb,
    -- When it was last used, to the minute or so; kept only where projects are put to sleep.
    add column used_at timestamptz,
    -- The server was stopped because nobody used it, and is started by whoever does.
    add column asleep boolean not null default false;

drop index projects_unsettled_idx;
create index projects_unsettled_idx on projects (node, not_before)
    where status not in ('ACTIVE_HEALTHY', 'INACTIVE', 'REMOVED')
        or (status = 'ACTIVE_HEALTHY' and (password_verifier is not null or outdated or settings_before is not null));
