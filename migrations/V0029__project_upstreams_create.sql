-- Why: the services of a project may answer somewhere else than those of all others. Only the operator says where: whoever does
-- makes the edge connect there.

create table project_upstreams (
    project_id bigint not null references projects,
    service    text   not null check (service in ('rest', 'auth', 'storage', 'realtime', 'functions')),
    url        text   not null,
    primary key (project_id, service)
);

create trigger project_upstreams_announce after insert or update or delete on project_upstreams for each statement execute function announce();
