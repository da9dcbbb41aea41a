-- Triggers of the storage tables.
create or replace trigger enforce_bucket_name_length_trigger
    before insert or update of name on storage.buckets
    for each row execute function storage.enforce_bucket_name_length();
create or replace trigger protect_buckets_delete
    before delete on storage.buckets
    for each statement execute function storage.protect_delete();
create or replace trigger protect_objects_delete
    before delete on storage.objects
    for each statement execute function storage.protect_delete();
create or replace trigger update_objects_updated_at
    before update on storage.objects
    for each row execute function storage.update_updated_at_column();
