-- Rows of one task, hold and priority, in order; merged by age like the queue.
-- Whatever their time: a clock that has been put back has not come to that of some of them yet.
-- Index: instance_held.
SELECT * FROM (
  SELECT rowid AS row_number, priority, due_us, id FROM instance INDEXED BY instance_held
  WHERE hold IS NOT NULL AND namespace = :namespace AND task = :task AND hold = '{hold}'
    AND priority = {priority} {owned}
  ORDER BY due_us, id LIMIT :limit
)
