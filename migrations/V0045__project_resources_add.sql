-- Why: a project's memory, processes and disk space are bounded. Every node has to be able to tell the owner which bound was reached, also
-- while the server is stopped for it, and a project that was made read-only has to become writable again.

alter table projects
    -- Why the project is restricted, or soon will be. Null: it is within its bounds.
    add column resource_warning text,
    -- Whether it was made read-only because its disk space is used up.
    add column read_only boolean not null default false;
