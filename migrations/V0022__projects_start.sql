-- Why: a setting may wait for the next restart, which can be weeks later and for another reason. If the server does not start
-- with it, what it started with last has to be known.

alter table projects
    -- Settings that the server last started with: what it goes back to.
    add column settings_started jsonb not null default '{}';

update projects set settings_started = coalesce(settings_before, settings);

comment on column projects.settings_before is 'Those before, until the server was told of the new ones.';
