-- Trigger: sets `updated_at` to the time of the transaction.
create or replace function storage.update_updated_at_column() returns trigger
language plpgsql
as $$
begin
    new.updated_at = now();
    return new;
end
$$;
alter function storage.update_updated_at_column() owner to supabase_storage_admin;
