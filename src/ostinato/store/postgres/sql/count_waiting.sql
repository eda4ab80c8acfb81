-- How many due instances have not started, for (partitions, now, most): of those that wait in the queues, and of those
-- that are held, up to that many each. Which queues there are is found as by find_due.
-- Index: instance_due and instance_held alone.
WITH RECURSIVE branch AS MATERIALIZED (
  SELECT owned.partition, first.priority, first.due_us
  FROM unnest($1::int[]) AS owned(partition) CROSS JOIN LATERAL (
    SELECT priority, due_us FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND partition = owned.partition
    ORDER BY priority, due_us LIMIT 1
  ) AS first
  UNION ALL
  SELECT branch.partition, next.priority, next.due_us
  FROM branch CROSS JOIN LATERAL (
    SELECT priority, due_us FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND partition = branch.partition
      AND priority > branch.priority
    ORDER BY priority, due_us LIMIT 1
  ) AS next
)
SELECT (
  SELECT count(*) FROM (
    SELECT 1 FROM branch CROSS JOIN LATERAL (
      SELECT 1 FROM instance
      WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
        AND partition = branch.partition AND priority = branch.priority
        AND due_us >= branch.due_us AND due_us <= $2::bigint
      ORDER BY due_us, id LIMIT $3::bigint
    ) AS entry
    WHERE branch.due_us <= $2::bigint LIMIT $3::bigint
  ) AS due
) + (
  SELECT count(*) FROM (
    SELECT 1 FROM instance WHERE hold IS NOT NULL AND due_us <= $2::bigint
    ORDER BY namespace, task, hold, priority, due_us, id LIMIT $3::bigint
  ) AS held
)
