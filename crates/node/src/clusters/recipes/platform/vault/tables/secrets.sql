-- Secrets of the project, sealed with a key that is not in the database.
create table vault.secrets (
    id uuid default gen_random_uuid() not null,
    name text,
    description text default '' not null,
    secret text not null,
    key_id uuid,
    nonce bytea,
    created_at timestamptz default current_timestamp not null,
    updated_at timestamptz default current_timestamp not null,
    constraint secrets_pkey primary key (id)
);
create unique index secrets_name_idx on vault.secrets (name) where name is not null;

grant select, delete on vault.secrets to postgres with grant option;
grant select, delete on vault.secrets to service_role;
comment on table vault.secrets is 'Sealed secrets. Use vault.create_secret and vault.update_secret to write, vault.decrypted_secrets to read';
