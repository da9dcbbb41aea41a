-- Why: whether clients must send an API key is decided for all projects by an option of the server. The services of some projects check
-- keys themselves, those of others rely on the edge: the operator decides it for single projects as well.

create table project_key_checks (
    project_id bigint  primary key references projects,
    enabled    boolean not null
);

create trigger project_key_checks_announce after insert or update or delete on project_key_checks
    for each statement execute function announce();
