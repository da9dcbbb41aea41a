-- Why: who finds a token in use that nobody remembers wants to know from where. The address of the use that was noted last, with
-- its time: as coarse as that.

alter table tokens add column last_used_from text;
