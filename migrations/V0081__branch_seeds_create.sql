-- Why: an empty branch needs some rows to work with. The operator stores SQL for them with the parent, and every new branch without data
-- runs it once.

create table branch_seeds (
    project_id bigint      primary key references projects,
    -- Each runs as the owner of the database, in this order, in one transaction.
    scripts    text[]      not null check (cardinality(scripts) between 1 and 100),
    updated_at timestamptz not null
);
