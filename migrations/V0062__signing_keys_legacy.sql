-- Why: the secret that signs the older API keys becomes a signing key when a project moves to signing keys. The project has at most
-- one such key: its state rules whether tokens that the secret signed are accepted. Two projects can import one key, so that an id is
-- unique in its project only.

alter table signing_keys add column is_legacy boolean not null default false;
alter table signing_keys add constraint signing_keys_legacy_algorithm check (not is_legacy or algorithm = 'HS256');

create unique index signing_keys_one_legacy on signing_keys (project_id) where is_legacy;

alter table signing_keys drop constraint signing_keys_pkey, add primary key (project_id, id);
drop index signing_keys_project;
