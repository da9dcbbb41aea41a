-- Why: authorities suggest when their certificates are to be renewed (RFC 9773). The moment that was chosen in the window is kept, so that
-- a restart, or another node, does not choose again.

alter table hostname_certificates
    -- Where the directory of the authority is that made it. Null: nobody wrote it down.
    add column directory    text,
    -- The window that renew_at was chosen in. Null: two thirds of the certificate's life.
    add column window_start timestamptz,
    add column window_end   timestamptz,
    -- When the authority is asked for it again. Null: never.
    add column ask_at       timestamptz;
