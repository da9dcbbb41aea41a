-- Why: every node caches what the access decision reads. Triggers announce each change in the transaction that makes it,
-- so no writer, not even a person with psql, can forget to.

create function announce() returns trigger language plpgsql as $$
begin
    perform pg_notify('gantry', tg_table_name);
    return null;
end
$$;

create trigger users_announce         after update or delete on users for each statement execute function announce();
create trigger organizations_announce after update or delete on organizations for each statement execute function announce();
create trigger members_announce       after insert or update or delete on members for each statement execute function announce();
-- `last_used_at` is written often and decides nothing.
create trigger tokens_announce        after update of user_id, digest, expires_at, revoked_at or delete on tokens for each statement execute function announce();
create trigger projects_announce      after insert or update or delete on projects for each statement execute function announce();
