-- Why: applications that register themselves are kept until somebody approves them, and one address could fill the room for
-- all of them. Each address has a share, so the row has to say where the registration came from.

alter table oauth_applications add column registered_from text;
create index oauth_applications_registered_from_idx on oauth_applications (registered_from, created_at) where source = 'dcr';
