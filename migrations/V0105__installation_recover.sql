-- Why: the store of backups outlives this database. After a recovery from the store an earlier server may still run somewhere, and
-- must not write there any more: the store counts recoveries, and the database knows which one it comes from.

alter table installation add column store_epoch bigint not null default 0;

-- A recovery needs the sealing key, which is in no backup. Null until the operator exported it.
alter table sealing add column exported_at timestamptz;
