-- Whether the current operation is this one. The prefix `storage.` can be left out.
create or replace function storage.allow_only_operation(expected_operation text) returns boolean
language sql stable
as $$
    select storage.allow_any_operation(array[expected_operation])
$$;
alter function storage.allow_only_operation(text) owner to supabase_storage_admin;
