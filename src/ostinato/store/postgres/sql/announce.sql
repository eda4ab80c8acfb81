-- Tells everybody who listens, for (channel, payload); waits for no disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1::text, $2::text)
