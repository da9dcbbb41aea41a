-- Why: projects deploy Edge Functions. A function has versions, of which one is live. The sources of a version lie in a folder of
-- the node under the name of its deployment; the row is written after the folder, so that no row names an incomplete one.

create table functions (
    id           uuid        primary key,
    project_id   bigint      not null references projects,
    slug         text        not null check (slug ~ '^[A-Za-z0-9_-]+$' and length(slug) <= 128),
    -- Null until a version is live.
    live_version integer,
    created_at   timestamptz not null,
    updated_at   timestamptz not null,
    constraint functions_slug_key unique (project_id, slug)
);

create table function_versions (
    function_id     uuid        not null references functions on delete cascade,
    version         integer     not null check (version > 0),
    -- Names the folder of the sources.
    deployment      uuid        not null unique,
    name            text        not null,
    verify_jwt      boolean     not null,
    -- Paths in the sources.
    entrypoint      text        not null,
    import_map      text,
    -- SHA-256 of the uploaded bundle in hex, if it was one.
    bundle_sha256   text,
    created_at      timestamptz not null,
    primary key (function_id, version)
);

create trigger functions_announce after insert or update or delete on functions for each statement execute function announce();
create trigger function_versions_announce after insert or update or delete on function_versions
    for each statement execute function announce();
