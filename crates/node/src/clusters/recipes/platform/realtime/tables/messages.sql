-- Broadcast messages, partitioned by day. Policies on this table authorize private channels.
create table realtime.messages (
    topic text not null,
    extension text not null,
    payload jsonb,
    event text,
    private boolean default false,
    updated_at timestamp default now() not null,
    inserted_at timestamp default now() not null,
    id uuid default gen_random_uuid() not null,
    binary_payload bytea,
    constraint messages_pkey primary key (id, inserted_at),
    constraint messages_payload_exclusive check ((payload is null) or (binary_payload is null))
) partition by range (inserted_at);
create index messages_inserted_at_topic_index on realtime.messages (inserted_at, topic) where (extension = 'broadcast'::text) and (private is true);

alter table realtime.messages owner to supabase_realtime_admin;
alter table realtime.messages enable row level security;
grant all on realtime.messages to postgres, dashboard_user;
grant insert, select, update on realtime.messages to anon, authenticated, service_role;
comment on table realtime.messages is 'Broadcast messages, partitioned by day. Policies on this table authorize private channels';
