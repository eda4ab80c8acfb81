-- Tasks that have live instances, backwards by name, for (partitions, now, number of tasks): of each whether one of its
-- newest waits unheld and is due, or whether it has more of them than are looked at. The last one of them, the one behind
-- that number, is not looked at.
-- Index: instance_live, backwards: a seek for each task, and its newest rows up to the first that waits. What has ended
-- of a task that is worked off from its oldest on has left its dead entries at the other end.
WITH RECURSIVE live AS (
  (
    SELECT namespace, task, 1::bigint AS place FROM instance WHERE finished_us IS NULL {bound}
    ORDER BY namespace DESC, task DESC, created_us DESC LIMIT 1
  )
  UNION ALL
  SELECT next.namespace, next.task, live.place + 1
  FROM live CROSS JOIN LATERAL (
    SELECT namespace, task FROM instance
    WHERE finished_us IS NULL AND (instance.namespace, instance.task) < (live.namespace, live.task)
    ORDER BY namespace DESC, task DESC, created_us DESC LIMIT 1
  ) AS next
  WHERE live.place <= $3::bigint
)
SELECT live.namespace, live.task, CASE WHEN live.place <= $3::bigint THEN
  EXISTS (
    SELECT 1 FROM (
      SELECT state, hold, due_us, partition FROM instance
      WHERE finished_us IS NULL AND instance.namespace = live.namespace AND instance.task = live.task
      ORDER BY created_us DESC LIMIT {told}
    ) AS newest
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND due_us <= $2::bigint
      AND partition = ANY($1::int[])
  )
  OR EXISTS (
    SELECT 1 FROM (
      SELECT partition FROM instance
      WHERE finished_us IS NULL AND instance.namespace = live.namespace AND instance.task = live.task
      ORDER BY created_us DESC OFFSET {told} LIMIT 1
    ) AS older
    WHERE partition = ANY($1::int[])
  )
END AS waits
FROM live ORDER BY live.place
