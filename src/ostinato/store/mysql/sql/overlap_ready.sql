-- The earliest instance of a task that waits for others to end, if there is no other left.
-- Index: instance_held; instance_live, in which whoever stands in its way is nearly always the oldest.
(SELECT id FROM instance FORCE INDEX (instance_held)
WHERE hold = 'overlap' AND namespace = {namespace} AND task = {task}
  AND NOT EXISTS (
    SELECT 1 FROM instance AS other FORCE INDEX (instance_live)
    WHERE other.namespace = {namespace} AND other.task = {task} AND other.live_created_us IS NOT NULL
      AND NOT other.hold <=> 'overlap'
  )
ORDER BY coalesce(fire_us, created_us), created_us, id LIMIT 1)
