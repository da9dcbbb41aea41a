-- Hashes of one-time tokens: confirmation, recovery, change of address.
create table auth.one_time_tokens (
    id uuid not null,
    user_id uuid not null,
    token_type auth.one_time_token_type not null,
    token_hash text not null,
    relates_to text not null,
    created_at timestamp default now() not null,
    updated_at timestamp default now() not null,
    constraint one_time_tokens_pkey primary key (id),
    constraint one_time_tokens_user_id_fkey foreign key (user_id) references auth.users (id) on delete cascade,
    constraint one_time_tokens_token_hash_check check (char_length(token_hash) > 0)
);
create index one_time_tokens_relates_to_hash_idx on auth.one_time_tokens using hash (relates_to);
create index one_time_tokens_token_hash_hash_idx on auth.one_time_tokens using hash (token_hash);
create unique index one_time_tokens_user_id_token_type_key on auth.one_time_tokens (user_id, token_type);

alter table auth.one_time_tokens owner to supabase_auth_admin;
alter table auth.one_time_tokens enable row level security;
grant all on auth.one_time_tokens to postgres, dashboard_user;
grant select on auth.one_time_tokens to postgres with grant option;
comment on table auth.one_time_tokens is 'Hashes of one-time tokens: confirmation, recovery, change of address';
