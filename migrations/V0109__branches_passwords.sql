-- Why: preview deployments read the password of a branch's database from the branch, and a branch tells which part of its
-- parent's schema it lacks.

alter table branches
    -- The generated password of the owner, sealed. Null: the owner set another one, or the branch is older than this.
    add column sealed_password bytea,
    -- Objects that the parent has beyond its migrations, and that could not be applied to the branch.
    add column unapplied_drift jsonb;
