-- Why: people keep queries by name, for themselves or for everybody who works on a project, and clients list and fetch them.

create table snippets (
    id          uuid        primary key,
    project_id  bigint      not null references projects,
    owner_id    bigint      not null references users on delete cascade,
    -- `user`: the owner's alone. `project`: every member of the project's organization sees it.
    visibility  text        not null check (visibility in ('user', 'project')),
    name        text        not null check (length(name) between 1 and 256),
    description text,
    sql         text        not null,
    inserted_at timestamptz not null,
    updated_at  timestamptz not null,
    updated_by  bigint      not null references users on delete cascade,
    -- A name names one snippet of a person on a project: adding it again replaces it.
    constraint snippets_name_key unique (project_id, owner_id, name)
);
create index snippets_owner_id_idx on snippets (owner_id);
create index snippets_updated_by_idx on snippets (updated_by);
