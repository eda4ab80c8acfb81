-- Due rows of the queue, for (partitions, now, rows of one branch, rows in all), then one row without an id: the next
-- due time. A branch is the queue of one partition and priority; which there are is found by seeks, so that an
-- empty queue costs one seek a partition. `place` counts within a branch: where the last place of a branch is among
-- the rows, the branch may have more that belong here.
-- Index: instance_due alone.
WITH RECURSIVE branch AS MATERIALIZED (
  SELECT owned.partition, (
    SELECT min(priority) FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND partition = owned.partition
  ) AS priority
  FROM unnest($1::int[]) AS owned(partition)
  UNION ALL
  SELECT branch.partition, (
    SELECT min(priority) FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND partition = branch.partition
      AND priority > branch.priority
  )
  FROM branch WHERE branch.priority IS NOT NULL
), due AS (
  SELECT branch.partition, branch.priority, entry.due_us, entry.id, entry.place
  FROM branch CROSS JOIN LATERAL (
    SELECT due_us, id, row_number() OVER (ORDER BY due_us, id) AS place FROM (
      SELECT due_us, id FROM instance
      WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
        AND partition = branch.partition AND priority = branch.priority AND due_us <= $2::bigint
      ORDER BY due_us, id LIMIT $3::bigint
    ) AS first
  ) AS entry
  WHERE branch.priority IS NOT NULL
  ORDER BY entry.due_us - branch.priority * {ageing}::bigint, entry.id LIMIT $4::bigint
)
SELECT partition, priority, due_us, id, place FROM due
UNION ALL
SELECT NULL, NULL, min(later.due_us), NULL, NULL
FROM branch CROSS JOIN LATERAL (
  SELECT due_us FROM instance
  WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
    AND partition = branch.partition AND priority = branch.priority AND due_us > $2::bigint
  ORDER BY due_us LIMIT 1
) AS later
WHERE branch.priority IS NOT NULL
