-- Trigger: rejects DELETE statements that do not come from the storage service, as they would leave the files behind.
-- The setting `storage.allow_delete_query` permits them in a transaction.
create or replace function storage.protect_delete() returns trigger
language plpgsql
as $$
begin
    if coalesce(current_setting('storage.allow_delete_query', true), 'false') <> 'true' then
        raise exception 'Direct deletion from storage tables is not allowed. Use the Storage API instead.'
            using errcode = '42501', hint = 'This prevents accidental data loss from orphaned objects.';
    end if;
    return null;
end
$$;
alter function storage.protect_delete() owner to supabase_storage_admin;
