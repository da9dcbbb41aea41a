-- Why: who manages an organization ends what its members let applications do there. That is none of the reasons there were.

alter table oauth_grants drop constraint oauth_grants_reason_check,
    add constraint oauth_grants_reason_check
        check (reason in ('user', 'application', 'replay', 'member', 'deleted', 'superseded', 'organization'));
