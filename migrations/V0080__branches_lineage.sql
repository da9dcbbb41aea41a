-- Why: a branch tells where it comes from and what was done to it, and its creation can be followed while it runs. Its schema can be
-- copied from the parent when the parent's migrations do not lead to it.

alter table branches
    -- The branch that this one was made of, if not of its parent.
    add column source_id bigint references projects,
    -- Where an empty branch has its schema from: the migrations of the parent, or the parent itself.
    add column schema_source text not null default 'migrations' check (schema_source in ('migrations', 'parent')),
    -- Versions that were computed from the parent's schema: they are never applied to the parent.
    add column drift text[] not null default '{}',
    -- What a copy is doing at the moment; null if none is made.
    add column copy_phase text;
