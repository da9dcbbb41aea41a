-- Why: a branch with data has the personal data of its parent. The operator can replace it by SQL, which runs before the copy
-- gets its place.

create table branch_maskings (
    project_id bigint      primary key references projects,
    -- Each runs as the owner of the database, in this order, in one transaction.
    rules      text[]      not null check (cardinality(rules) between 1 and 100),
    updated_at timestamptz not null
);
