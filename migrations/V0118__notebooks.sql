-- Why: members of a project keep documents of text and queries, and clients list, fetch and replace them.

create table notebooks (
    id          uuid        primary key,
    project_id  bigint      not null references projects on delete cascade,
    -- Not unique: see api::notebooks.
    name        text        not null check (length(name) between 1 and 255),
    description text,
    favorite    boolean     not null,
    -- JSON: the cells in their order, each with its id.
    content     text        not null,
    inserted_at timestamptz not null,
    updated_at  timestamptz not null,
    -- The users that created it and changed it last; null if the account was deleted.
    owner_id    bigint      references users on delete set null,
    updated_by  bigint      references users on delete set null
);
create index notebooks_project_id_idx on notebooks (project_id);
create index notebooks_owner_id_idx on notebooks (owner_id);
create index notebooks_updated_by_idx on notebooks (updated_by);
