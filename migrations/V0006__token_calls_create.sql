-- Why: who replaces a token by a smaller one has to know what it was used for. A row a day for each operation a token was
-- let in to, and no more: enough to tell which permissions it needs, and bounded by the operations there are.

create table token_calls (
    token_id  bigint not null references tokens on delete cascade,
    day       date   not null,
    operation text   not null,
    -- Which of the operation's cases, if it tells any apart.
    kind      text   not null,
    primary key (token_id, day, operation, kind)
);
create index token_calls_day_idx on token_calls (day);
