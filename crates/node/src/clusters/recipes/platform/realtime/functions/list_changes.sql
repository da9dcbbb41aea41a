-- The next changes of a logical replication slot with the plugin wal2json to tables of a publication, as `realtime.apply_rls`
-- returns them. `slot_changes_count` is the number of changes that were taken from the slot.
create or replace function realtime.list_changes(publication name, slot_name name, max_changes integer, max_record_bytes integer) returns table (
    wal jsonb, is_rls_enabled boolean, subscription_ids uuid[], errors text[], slot_changes_count bigint)
language sql
as $$
    with published as (
        select
            string_agg(realtime.quote_wal2json(format('%I.%I', t.schemaname, t.tablename)::regclass), ',') as tables,
            concat_ws(',',
                case when bool_or(p.pubinsert) then 'insert' end,
                case when bool_or(p.pubupdate) then 'update' end,
                case when bool_or(p.pubdelete) then 'delete' end) as actions
        from pg_publication p
        left join pg_publication_tables t on t.pubname = p.pubname
        where p.pubname = publication
    ), changes as materialized (
        select c.data::jsonb as change
        from published, pg_logical_slot_get_changes(
            slot_name, null, max_changes,
            'include-pk', 'true', 'include-transaction', 'false', 'include-timestamp', 'true', 'include-type-oids', 'true',
            'format-version', '2', 'actions', published.actions, 'add-tables', published.tables) as c
        where published.tables is not null and published.actions <> ''
    )
    select r.wal, r.is_rls_enabled, r.subscription_ids, r.errors, (select count(*) from changes)
    from changes, realtime.apply_rls(changes.change, max_record_bytes) as r
    where cardinality(r.subscription_ids) > 0
    union all
    select null, null, null, null, (select count(*) from changes)
    where not exists (select from changes)
$$;
alter function realtime.list_changes(name, name, integer, integer) owner to supabase_realtime_admin;
grant execute on function realtime.list_changes(name, name, integer, integer) to postgres, dashboard_user;
