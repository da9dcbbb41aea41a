-- Buckets, and policies on files by folder and owner.
insert into storage.buckets (id, name, public, file_size_limit, allowed_mime_types)
values ('avatars', 'avatars', true, 1048576, array['image/png', 'image/jpeg']), ('documents', 'documents', false, null, null)
on conflict (id) do nothing;
alter table storage.objects enable row level security;
-- migration
create policy "Avatars are public" on storage.objects for select using (bucket_id = 'avatars');
create policy "Own folder" on storage.objects for all to authenticated
    using (bucket_id = 'documents' and (storage.foldername(name))[1] = auth.uid()::text)
    with check (bucket_id = 'documents' and (storage.foldername(name))[1] = auth.uid()::text and storage.extension(name) = 'pdf');
create policy "Buckets are listed" on storage.buckets for select to authenticated using (true);
-- migration
drop policy if exists "Avatars are public" on storage.objects;
drop policy if exists "Never existed" on storage.objects;
create policy "Avatars are public" on storage.objects for select to anon, authenticated using (bucket_id = 'avatars');
alter policy "Buckets are listed" on storage.buckets to anon;
create function public.on_upload() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger on_upload after insert on storage.objects for each row execute function public.on_upload();
