-- Why: clusters that are there before anybody asks for one. Such a cluster has its final ref, user id, folder and, if it
-- runs, process; to take it is to move its row into `projects`, in the transaction that makes the project. So it is always
-- exactly one project's or nobody's, whatever is killed.

create table prepared_clusters (
    -- Added to the first of the projects' user ids. From the sequence of `projects.id`, so that no project has the same.
    account    bigint      primary key,
    ref        text        not null unique check (ref ~ '^[a-z]{20}$'),
    node       uuid        not null,
    -- What it was copied from: a version of PostgreSQL, and what ours makes of it.
    template   text        not null,
    -- Whether its server was started, too.
    running    boolean     not null,
    created_at timestamptz not null
);

-- Null stands for the id.
alter table projects add column account bigint unique;
