-- Tries an insert as the current role and rolls it back: raises PT200 if it succeeds, and the insert's own error otherwise.
create or replace function storage.can_insert_object(bucketid text, name text, owner uuid, metadata jsonb) returns void
language plpgsql
as $$
begin
    insert into storage.objects (bucket_id, name, owner, metadata) values (bucketid, name, owner, metadata);
    raise sqlstate 'PT200' using message = 'ROLLBACK', detail = 'rollback successful insert';
end
$$;
alter function storage.can_insert_object(text, text, uuid, jsonb) owner to supabase_storage_admin;
