-- Why: a token creates narrower tokens of itself, for agents and jobs. They end with it: a revocation
-- revokes all of them, and none lives longer.

alter table tokens
    -- The token that created it.
    add column parent_id bigint   references tokens on delete cascade,
    -- Number of ancestors.
    add column depth     smallint not null default 0,
    add constraint tokens_depth_check check (depth between 0 and 3 and (depth = 0) = (parent_id is null)),
    add constraint tokens_child_check check (parent_id is null or reach is not null);
create index tokens_parent_id_idx on tokens (parent_id) where parent_id is not null;

create or replace trigger tokens_keep
    before update of user_id, digest, created_at, expires_at, reach, permissions, organizations, projects, networks,
        not_before, parent_id, depth
    on tokens for each row when (old.reach is not null) execute function tokens_keep();
