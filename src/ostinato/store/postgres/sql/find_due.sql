-- Due rows of the queue, for (partitions, now, rows of one branch, rows in all), each with the next due time; where there
-- is none, one row that says that time alone. A branch is the queue of one partition and priority; which there are, and
-- when the first row of each is due, is found by seeks: one for a partition without waiting rows, one more for each branch
-- that has none due. Where so many rows are of one branch as it may give, it may have more that belong here.
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
  SELECT entry.*
  FROM branch CROSS JOIN LATERAL (
    SELECT {columns} FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
      AND partition = branch.partition AND priority = branch.priority
      AND due_us >= branch.due_us AND due_us <= $2::bigint
    ORDER BY due_us, id LIMIT $3::bigint
  ) AS entry
  WHERE branch.due_us <= $2::bigint
  ORDER BY entry.due_us - entry.priority * {ageing}::bigint, entry.id LIMIT $4::bigint
)
SELECT due.*, next.due_us AS next_us
FROM (
  SELECT min(later.due_us) AS due_us FROM (
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
) AS next LEFT JOIN due ON true
