-- Triggers of the realtime tables.
create or replace trigger tr_check_filters
    before insert or update on realtime.subscription
    for each row execute function realtime.subscription_check_filters();
