-- The earliest instance of each task that waits for others to end, where nothing that has started is left, nor anything
-- that is older than it, but for shards of the same fire.
-- Index: instance_held; instance_live, which alone gives the order asked for, and in which whoever stands in the way
-- is nearly always the oldest. It is read by itself, so that no estimate of how many there are has another one sorted.
SELECT first.id FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS wanted(namespace, task, place)
CROSS JOIN LATERAL (
  SELECT id, created_us, fire_trigger, fire_us FROM instance
  WHERE hold IS NOT NULL AND namespace = wanted.namespace AND task = wanted.task AND hold = 'overlap'
  ORDER BY coalesce(fire_us, created_us), created_us, id LIMIT 1
) AS first
WHERE (
  SELECT other.id FROM (
    SELECT id, created_us, attempt, hold, fire_trigger, fire_us FROM instance
    WHERE finished_us IS NULL AND namespace = wanted.namespace AND task = wanted.task
    ORDER BY created_us OFFSET 0
  ) AS other
  WHERE other.hold IS DISTINCT FROM 'overlap'
    AND (other.attempt > 0 OR (other.created_us, other.id) < (first.created_us, first.id))
    AND (other.fire_us = first.fire_us AND other.fire_trigger = first.fire_trigger) IS NOT TRUE
  LIMIT 1
) IS NULL
ORDER BY wanted.place
