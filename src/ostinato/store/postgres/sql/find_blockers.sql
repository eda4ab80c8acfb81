-- Sessions for which a process waits and that wait for none themselves; who waits in between goes on by itself.
WITH RECURSIVE blocker(pid) AS (
  SELECT unnest(pg_blocking_pids($1)) UNION SELECT unnest(pg_blocking_pids(blocker.pid)) FROM blocker
)
SELECT pid FROM blocker WHERE pid <> 0 AND pid <> $1 AND cardinality(pg_blocking_pids(pid)) = 0
