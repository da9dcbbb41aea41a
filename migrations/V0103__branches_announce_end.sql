-- Why: the owner of a branch wants to know that it ends soon, while it can still be kept. Each end is announced a day and an hour ahead, once,
-- also after a restart, so the last notice is part of the branch.

alter table branches
    -- End that was announced last, and how long before it.
    add column announced_end timestamptz,
    add column announced_lead_secs integer,
    -- When the notice is next to be sent to the branch's URL; null if it was, or needs not be.
    add column announce_at timestamptz,
    add column announce_attempts integer not null default 0;
create index branches_announce_idx on branches (announce_at) where announce_at is not null;
