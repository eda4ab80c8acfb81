-- Whether this session holds the lock now, which it takes once, since it would stack.
SELECT
  CASE WHEN EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND pid = pg_backend_pid() AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND (classid::bigint << 32 | objid::bigint) = $1::bigint
  ) THEN true ELSE pg_try_advisory_lock($1::bigint) END
