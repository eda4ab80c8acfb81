-- The earliest instance of a task that waits for others to end, if there is no other left.
-- Index: instance_held; instance_live, in which whoever stands in its way is nearly always the oldest.
SELECT rowid AS row_number FROM instance INDEXED BY instance_held
WHERE hold IS NOT NULL AND namespace = :namespace AND task = :task AND hold = 'overlap'
  AND NOT EXISTS (
    SELECT 1 FROM instance AS other INDEXED BY instance_live
    WHERE other.finished_us IS NULL AND other.namespace = :namespace AND other.task = :task
      AND other.hold IS NOT 'overlap'
  )
ORDER BY coalesce(fire_us, created_us), created_us, id LIMIT 1
