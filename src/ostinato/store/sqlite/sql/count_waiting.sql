-- How many due instances have not started: of those that wait in the queue, and of those that are held, up to :limit each.
-- Index: instance_due and instance_held, which alone are read.
SELECT
  (SELECT count(*) FROM (
    SELECT 1 FROM instance INDEXED BY instance_due
    WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
      AND priority IN ({priorities}) AND due_us <= :now_us LIMIT :limit
  ))
  + (SELECT count(*) FROM (
    SELECT 1 FROM instance INDEXED BY instance_held WHERE hold IS NOT NULL AND due_us <= :now_us LIMIT :limit
  ))
