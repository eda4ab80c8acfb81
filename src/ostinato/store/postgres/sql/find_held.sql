-- Rows of held tasks, for (numbers of queries, namespaces, tasks, holds, limits, partitions): of each query
-- the first by age, up to its limit, from one branch for each of its holds and each priority.
-- Whatever their time: a clock that has been put back has not come to that of some of them yet.
-- Index: instance_held; the partition is a residual filter, since a task nearly always is in one.
SELECT query, id FROM (
  SELECT wanted.query, entry.id, wanted.count, row_number() OVER (
    PARTITION BY wanted.query ORDER BY entry.due_us - level.priority * {ageing}::bigint, entry.id
  ) AS place
  FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::bigint[])
    AS wanted(query, namespace, task, hold, count)
  CROSS JOIN generate_series(0, 9) AS level(priority)
  CROSS JOIN LATERAL (
    SELECT due_us, id FROM instance
    WHERE instance.hold IS NOT NULL AND instance.namespace = wanted.namespace AND instance.task = wanted.task
      AND instance.hold = wanted.hold AND instance.priority = level.priority
      AND instance.partition = ANY($6::int[])
    ORDER BY due_us, id LIMIT wanted.count
  ) AS entry
) AS ranked
WHERE place <= count
ORDER BY query, place
