-- Secrets in the clear, decrypted for each reader.
create or replace view vault.decrypted_secrets as
select id, name, description, secret, vault._open(secret, id) as decrypted_secret, key_id, nonce, created_at, updated_at
from vault.secrets;
grant select, delete on vault.decrypted_secrets to postgres with grant option;
grant select, delete on vault.decrypted_secrets to service_role;
