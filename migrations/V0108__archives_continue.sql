-- Why: the log of a cluster that was restored in place follows the archived log up to the moment of the restore, so that every
-- moment after it can be recovered before the next base backup.

-- The archive whose log is the log of this one up to fork_lsn.
alter table archives
    add column parent_id  bigint references archives,
    add column fork_lsn   bigint,
    -- The restore that began it.
    add column restore_id bigint references restores,
    add constraint archives_fork_check check ((parent_id is null) = (fork_lsn is null)),
    add constraint archives_restore_key unique (restore_id);

-- What a restore needs to begin the archive of its cluster: the end of the archived log, the timeline of the cluster, the archive
-- of the replaced cluster, and whether the log of that is in the store to its end.
alter table restores
    add column fork_archive_id     bigint references archives on delete set null,
    add column fork_lsn            bigint,
    add column fork_timeline       bigint,
    add column replaced_archive_id bigint references archives on delete set null,
    add column is_log_complete     boolean not null default false;
