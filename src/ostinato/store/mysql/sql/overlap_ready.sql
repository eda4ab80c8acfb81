-- The earliest instance of a task that waits for others to end, if nothing that has started is left, nor anything that
-- is older than it, but for shards of the same fire.
-- Index: instance_held; instance_live, in which whoever stands in its way is nearly always the oldest.
(SELECT first.id FROM (
  SELECT id, created_us, fire_trigger, fire_us FROM instance FORCE INDEX (instance_held)
  WHERE hold = 'overlap' AND namespace = {namespace} AND task = {task}
  ORDER BY coalesce(fire_us, created_us), created_us, id LIMIT 1
) AS first
WHERE NOT EXISTS (
  SELECT 1 FROM instance AS other FORCE INDEX (instance_live)
  WHERE other.namespace = {namespace} AND other.task = {task} AND other.live_created_us IS NOT NULL
    AND NOT other.hold <=> 'overlap'
    AND (other.attempt > 0 OR other.live_created_us < first.created_us
      OR (other.live_created_us = first.created_us AND other.id < first.id))
    AND (other.fire_us = first.fire_us AND other.fire_trigger = first.fire_trigger) IS NOT TRUE
))
