-- Operation of the storage service that this query belongs to, such as `storage.object.list`. NULL outside the service.
create or replace function storage.operation() returns text
language plpgsql stable
as $$
begin
    return nullif(current_setting('storage.operation', true), '');
end
$$;
alter function storage.operation() owner to supabase_storage_admin;
