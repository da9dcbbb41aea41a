-- Why: a deleted project can be restored for some days. Its cluster is kept, and its rows are moved aside as JSON, so that no
-- other part of the platform has to tell a deleted project from another.

alter table projects
    -- Until when a removed project can be restored. Null: its cluster is not kept.
    add column held_until timestamptz,
    add constraint projects_held_check check (held_until is null or desired = 'removed');
create index projects_held_idx on projects (node, held_until) where held_until is not null;

create table removed_project_rows (
    project_id bigint primary key references projects,
    removed_at timestamptz not null,
    -- The vanity subdomain, without the domain.
    vanity     text,
    -- For each table, an array of its rows.
    rows       jsonb       not null
);
