-- Due rows of branches behind a row, for (partitions, priorities, due times, ids, now, rows of one branch, rows in
-- all).
-- Index: instance_due alone.
SELECT entry.*
FROM unnest($1::int[], $2::smallint[], $3::bigint[], $4::text[]) AS branch(partition, priority, due_us, id)
CROSS JOIN LATERAL (
  SELECT {columns} FROM instance
  WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
    AND partition = branch.partition AND priority = branch.priority AND due_us <= $5::bigint
    AND (instance.due_us, instance.id) > (branch.due_us, branch.id)
  ORDER BY due_us, id LIMIT $6::bigint
) AS entry
ORDER BY entry.due_us - entry.priority * {ageing}::bigint, entry.id LIMIT $7::bigint
