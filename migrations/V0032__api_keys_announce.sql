-- Why: the edge can check the keys that clients of projects' services send. It keeps in memory which are good, so every change must be
-- heard by every node.

create trigger api_keys_announce  after insert or update or delete on api_keys  for each statement execute function announce();
create trigger key_rings_announce after insert or update or delete on key_rings for each statement execute function announce();
