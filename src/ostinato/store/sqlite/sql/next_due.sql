-- Earliest later due time in the queue of one priority.
-- Index: instance_due, one seek.
SELECT * FROM (
  SELECT due_us FROM instance INDEXED BY instance_due
  WHERE (state = 'pending' OR state = 'retry_waiting') AND hold IS NULL
    AND priority = {priority} AND due_us > :now_us {owned}
  ORDER BY due_us LIMIT 1
)
