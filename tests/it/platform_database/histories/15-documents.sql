-- Documents that are checked by a schema, and times of change.
create extension if not exists pg_jsonschema with schema extensions;
create extension if not exists moddatetime schema extensions;
create table public.customer (
    id serial primary key,
    metadata json,
    settings jsonb not null default '{}',
    updated_at timestamptz default now(),
    check (extensions.json_matches_schema('{"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string", "maxLength": 16}}}}', metadata))
);
create trigger handle_updated_at before update on public.customer for each row execute procedure moddatetime (updated_at);
-- migration
alter table public.customer add constraint settings_valid check (
    extensions.jsonb_matches_schema(schema := '{"type": "object", "additionalProperties": {"type": "boolean"}}', instance := settings));
insert into public.customer (metadata) values ('{"tags": ["vip", "darkmode"]}');
update public.customer set settings = '{"dark": true}';
