-- Tasks that have live instances, backwards by name: of each whether one of its newest waits unheld and is due, or
-- whether it has more of them than are looked at. The last one, behind :limit of them, is not looked at.
-- Index: instance_live, a seek for each task, and its newest rows up to the first that waits. With two columns on either
-- side SQLite takes but the first of them for the seek, unless a plus makes the others mere values.
WITH RECURSIVE live(row_number, place) AS (
  SELECT * FROM (
    SELECT rowid, 1 FROM instance INDEXED BY instance_live
    WHERE finished_us IS NULL {bound}
    ORDER BY namespace DESC, task DESC, created_us DESC LIMIT 1
  )
  UNION ALL
  SELECT (
    SELECT other.rowid FROM instance AS other INDEXED BY instance_live
    WHERE other.finished_us IS NULL AND (other.namespace, other.task) < (+newest.namespace, +newest.task)
    ORDER BY other.namespace DESC, other.task DESC, other.created_us DESC LIMIT 1
  ), place + 1
  FROM live CROSS JOIN instance AS newest ON newest.rowid = live.row_number
  WHERE place <= :limit
)
SELECT place, live_task.namespace, live_task.task, CASE WHEN place <= :limit THEN
  EXISTS (
    SELECT 1 FROM (
      SELECT state, hold, due_us, partition FROM instance INDEXED BY instance_live
      WHERE finished_us IS NULL AND namespace = live_task.namespace AND task = live_task.task
      ORDER BY created_us DESC LIMIT {told}
    )
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL AND due_us <= :now_us {owned}
  )
  OR EXISTS (
    SELECT 1 FROM (
      SELECT partition FROM instance INDEXED BY instance_live
      WHERE finished_us IS NULL AND namespace = live_task.namespace AND task = live_task.task
      ORDER BY created_us DESC LIMIT 1 OFFSET {told}
    )
    WHERE true {owned}
  )
END
FROM live CROSS JOIN instance AS live_task ON live_task.rowid = live.row_number
