-- Due rows of the queue, for (partitions, now, rows of one branch, rows in all), then one row without an id: the next
-- due time. A branch is the queue of one partition and priority; which there are, and when the first row of each is
-- due, is found by seeks: one for a partition without waiting rows, one more for each branch that has none due.
-- `place` counts within a branch: where the last place of a branch is among the rows, the branch may have more that
-- belong here.
-- Index: instance_due alone.
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
), due AS (
  SELECT branch.partition, branch.priority, entry.due_us, entry.id, entry.place
  FROM branch CROSS JOIN LATERAL (
    SELECT due_us, id, row_number() OVER (ORDER BY due_us, id) AS place FROM (
      SELECT due_us, id FROM instance
      WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
        AND partition = branch.partition AND priority = branch.priority
        AND due_us >= branch.due_us AND due_us <= $2::bigint
      ORDER BY due_us, id LIMIT $3::bigint
    ) AS first
  ) AS entry
  WHERE branch.due_us <= $2::bigint
  ORDER BY entry.due_us - branch.priority * {ageing}::bigint, entry.id LIMIT $4::bigint
)
SELECT partition, priority, due_us, id, place FROM due
UNION ALL
SELECT NULL, NULL, min(later.due_us), NULL, NULL
FROM (
  SELECT due_us FROM branch WHERE due_us > $2::bigint
  UNION ALL
  SELECT entry.due_us FROM branch CROSS JOIN LATERAL (
    SELECT due_us FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
      AND partition = branch.partition AND priority = branch.priority AND due_us > $2::bigint
    ORDER BY due_us LIMIT 1
  ) AS entry
  WHERE branch.due_us <= $2::bigint
) AS later
