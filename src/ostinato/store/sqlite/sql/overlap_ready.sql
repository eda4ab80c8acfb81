-- The earliest instance of a task that waits for others to end, if nothing that has started is left, nor anything that
-- is older than it, but for shards of the same fire.
-- Index: instance_held; instance_live, in which whoever stands in its way is nearly always the oldest.
SELECT first.row_number FROM (
  SELECT rowid AS row_number, created_us, id, fire_trigger, fire_us FROM instance INDEXED BY instance_held
  WHERE hold IS NOT NULL AND namespace = :namespace AND task = :task AND hold = 'overlap'
  ORDER BY coalesce(fire_us, created_us), created_us, id LIMIT 1
) AS first
WHERE NOT EXISTS (
  SELECT 1 FROM instance AS other INDEXED BY instance_live
  WHERE other.finished_us IS NULL AND other.namespace = :namespace AND other.task = :task
    AND other.hold IS NOT 'overlap'
    AND (other.attempt > 0 OR (other.created_us, other.id) < (first.created_us, first.id))
    AND (other.fire_us = first.fire_us AND other.fire_trigger = first.fire_trigger) IS NOT TRUE
)
