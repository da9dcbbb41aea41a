-- Why: functions have secrets in their environment. Values are sealed; the number of the last change tells which environment a
-- running function has.

create table function_secrets (
    project_id bigint      not null references projects,
    name       text        not null,
    sealed     bytea       not null,
    -- SHA-256 of the value, which the API shows.
    digest     bytea       not null,
    updated_at timestamptz not null,
    primary key (project_id, name)
);

create table function_environments (
    project_id bigint primary key references projects,
    generation bigint not null
);

create trigger function_environments_announce after insert or update or delete on function_environments
    for each statement execute function announce();
