-- Due rows of the queue of one priority, in order; ten of these are merged by age.
-- Index: instance_due, which alone is read unless {owned} has to look at the partition.
SELECT * FROM (
  SELECT rowid AS row_number, priority, due_us, id FROM instance INDEXED BY instance_due
  WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
    AND priority = {priority} AND due_us <= :now_us {owned}
  ORDER BY due_us, id LIMIT :limit
)
