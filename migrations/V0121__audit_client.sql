-- Why: an agent acts with the token of a person. The log has to show which program made a change, as
-- the program states it.

-- Part of the hash of entries that have it; hashes of all others stay as they are.
alter table audit_entries add column client text;
