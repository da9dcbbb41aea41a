-- Why: the owner of a branch wants to know when a run has ended without asking again and again. Notifications are retried, also after a
-- restart, so what is still to be sent is part of the run.

alter table action_runs
    -- When the end of the run is next to be sent to the branch's URL; null if it was, or needs not be.
    add column notify_at timestamptz,
    add column notify_attempts integer not null default 0;
create index action_runs_notify_idx on action_runs (notify_at) where notify_at is not null;
