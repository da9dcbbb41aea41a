-- Why: after a recovery of the installation each project is restored to the last moment in its archive, and has no cluster that it
-- could keep instead.

alter table restores add column recovers boolean not null default false;
alter table restores drop constraint restores_check;
alter table restores add constraint restores_target_check
    check (recovers or (target_time is null) <> (target_lsn is null and reuse_of is null));
