-- Why: hostnames get certificates of an authority. An order takes several steps, and its answers must be given by whichever node
-- the authority happens to ask, so it is a row: whoever takes it up after a crash goes on where it was.

-- Who we are at an authority.
create table acme_accounts (
    directory text  primary key,
    -- Encrypted.
    sealed    bytea not null
);

-- One order a hostname.
create table acme_orders (
    hostname_id       uuid        primary key references custom_hostnames (id) on delete cascade,
    -- Where the authority keeps it.
    url               text        not null,
    -- Private key of the certificate, encrypted. Made first, so that an answer that was lost can be fetched again.
    sealed_key        bytea       not null,
    -- What the edge answers while the authority looks.
    token             text,
    key_authorization text,
    created_at        timestamptz not null
);

-- When orders were begun: authorities allow so many. Rows of more than some hours ago are deleted.
create table acme_begun (
    at timestamptz not null
);

create table hostname_certificates (
    hostname_id uuid        primary key references custom_hostnames (id) on delete cascade,
    -- PEM, the certificate first.
    chain       text        not null,
    -- Encrypted.
    sealed_key  bytea       not null,
    not_after   timestamptz not null,
    renew_at    timestamptz not null
);

create trigger acme_orders_announce after insert or update or delete on acme_orders for each statement execute function announce();
create trigger hostname_certificates_announce after insert or update or delete on hostname_certificates
    for each statement execute function announce();
