-- Why: a token may be given less than its owner has. What it may do stands in the token's own row, so that it cannot be
-- lost, or half written, and leave a token that may do everything.

alter table tokens
    -- What it reaches. Null: a classic token, which reaches and may do whatever its owner does.
    add column reach         text,
    -- Names of the catalogue. One that a node does not know permits nothing there.
    add column permissions   text[],
    -- Rows of `organizations` and `projects`. Ids are never used again, so one that is gone reaches nothing.
    add column organizations bigint[],
    add column projects      bigint[],
    -- Where it may be sent from; anywhere, if empty.
    add column networks      cidr[],
    add column not_before    timestamptz,
    add constraint tokens_reach_check check (reach in ('account', 'organizations', 'projects')),
    -- A check that comes out null passes, hence `coalesce`.
    add constraint tokens_scoped_check check (
        case
            when reach is null then num_nonnulls(permissions, organizations, projects, networks, not_before) = 0
            else num_nulls(permissions, networks, expires_at) = 0
                and cardinality(permissions) > 0
                and expires_at <= created_at + interval '366 days'
                and coalesce(cardinality(organizations), 0) between (reach <> 'account')::int
                    and case reach when 'account' then 0 when 'projects' then 1 else 100 end
                and coalesce(cardinality(projects), 0) between (reach = 'projects')::int
                    and case reach when 'projects' then 100 else 0 end
        end);

-- A token that may do something else is another token: who holds one knows what it is for as long as it lives.
create function tokens_keep() returns trigger language plpgsql as $$
begin
    raise exception 'a scoped token cannot be changed, only revoked' using errcode = 'integrity_constraint_violation';
end
$$;

create trigger tokens_keep before update of user_id, digest, created_at, expires_at, reach, permissions, organizations, projects, networks, not_before
    on tokens for each row when (old.reach is not null) execute function tokens_keep();

-- `last_used_at` is written often and decides nothing.
drop trigger tokens_announce on tokens;
create trigger tokens_announce after update of user_id, digest, expires_at, revoked_at, reach, permissions, organizations, projects, networks, not_before or delete
    on tokens for each statement execute function announce();
