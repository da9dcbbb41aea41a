-- Why: people can sign in through a provider of OpenID Connect. Which account is whose there is written down the first time, by the
-- two names that the provider never gives to anybody else: an address can change hands.

create table identities (
    issuer     text        not null,
    subject    text        not null check (length(subject) <= 255),
    user_id    bigint      not null references users on delete cascade,
    created_at timestamptz not null,
    primary key (issuer, subject)
);
create unique index identities_user_key on identities (user_id, issuer);
