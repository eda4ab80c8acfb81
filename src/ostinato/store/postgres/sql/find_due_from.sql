-- As find_due, for (partitions, priorities, floors, now, rows of one branch, rows in all): of each branch only what
-- is due from its floor on, so that dead entries before it are not gone through.
-- Index: instance_due alone, two seeks a branch.
WITH branch AS MATERIALIZED (
  SELECT partition, priority, floor_us
  FROM unnest($1::int[], $2::smallint[], $3::bigint[]) AS asked(partition, priority, floor_us)
), due AS (
  SELECT entry.*
  FROM branch CROSS JOIN LATERAL (
    SELECT {columns} FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
      AND partition = branch.partition AND priority = branch.priority
      AND due_us >= branch.floor_us AND due_us <= $4::bigint
    ORDER BY due_us, id LIMIT $5::bigint
  ) AS entry
  ORDER BY entry.due_us - entry.priority * {ageing}::bigint, entry.id LIMIT $6::bigint
)
SELECT due.*, next.due_us AS next_us
FROM (
  SELECT min(later.due_us) AS due_us
  FROM branch CROSS JOIN LATERAL (
    SELECT due_us FROM instance
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
      AND partition = branch.partition AND priority = branch.priority AND due_us > $4::bigint
    ORDER BY due_us LIMIT 1
  ) AS later
) AS next LEFT JOIN due ON true
