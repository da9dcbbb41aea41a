-- Why: owners of an organization or a project limit the hosts that requests on its behalf may go to: log drains, webhooks, calls of
-- databases, notifications and keys of sign-in services. Without a row all public hosts are permitted.

create table outbound_hosts (
    project_id      bigint unique references projects,
    organization_id bigint unique references organizations on delete cascade,
    hosts           text[] not null,
    check (num_nonnulls(project_id, organization_id) = 1)
);

create trigger outbound_hosts_announce after insert or update or delete on outbound_hosts
    for each statement execute function announce();
