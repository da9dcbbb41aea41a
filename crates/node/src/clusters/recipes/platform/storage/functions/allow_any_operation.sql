-- Whether the current operation is one of these. The prefix `storage.` can be left out.
create or replace function storage.allow_any_operation(expected_operations text[]) returns boolean
language sql stable
as $$
    select coalesce(bool_or(storage.operation() in (expected, 'storage.' || expected)), false)
    from unnest(expected_operations) as expected
$$;
alter function storage.allow_any_operation(text[]) owner to supabase_storage_admin;
