-- Bytes of the files in each bucket.
create or replace function storage.get_size_by_bucket() returns table (size bigint, bucket_id text)
language plpgsql stable
as $$
begin
    return query
        select coalesce(sum((objects.metadata ->> 'size')::bigint), 0)::bigint, objects.bucket_id
        from storage.objects
        group by objects.bucket_id;
end
$$;
alter function storage.get_size_by_bucket() owner to supabase_storage_admin;
