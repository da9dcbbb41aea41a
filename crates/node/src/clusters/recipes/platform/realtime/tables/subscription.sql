-- Subscriptions of clients to changes of tables.
create table realtime.subscription (
    id bigint generated always as identity,
    subscription_id uuid not null,
    entity regclass not null,
    filters realtime.user_defined_filter[] default '{}'::realtime.user_defined_filter[] not null,
    claims jsonb not null,
    claims_role regrole generated always as (realtime.to_regrole((claims ->> 'role'::text))) stored not null,
    created_at timestamp default timezone('utc'::text, now()) not null,
    action_filter text default '*'::text,
    selected_columns text[],
    constraint pk_subscription primary key (id),
    constraint subscription_action_filter_check check (action_filter = any (array['*'::text, 'INSERT'::text, 'UPDATE'::text, 'DELETE'::text]))
);
create index ix_realtime_subscription_entity on realtime.subscription (entity);
create unique index subscription_subscription_id_entity_filters_action_filter_selec on realtime.subscription (subscription_id, entity, filters, action_filter, (coalesce(selected_columns, '{}'::text[])));

alter table realtime.subscription owner to supabase_realtime_admin;
grant all on realtime.subscription to postgres, dashboard_user;
grant select on realtime.subscription to anon, authenticated, service_role;
comment on table realtime.subscription is 'Subscriptions of clients to changes of tables';
