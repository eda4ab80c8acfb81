-- Oldest instances of tasks that have not ended, for (namespaces, tasks, limit of each).
-- Index: instance_live.
SELECT {columns} FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted(wanted_namespace, wanted_task, place)
CROSS JOIN LATERAL (
  SELECT * FROM instance
  WHERE finished_us IS NULL AND instance.namespace = wanted_namespace AND instance.task = wanted_task
  ORDER BY created_us LIMIT $3::bigint
) AS instance
ORDER BY place, created_us
