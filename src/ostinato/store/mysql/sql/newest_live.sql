-- Newest instances of a task that have not ended: whose they are, and whether each waits unheld and is due.
-- Index: instance_live, backwards.
(SELECT {number}, `partition`, queue_priority IS NOT NULL AND due_us <= {now_us} FROM instance FORCE INDEX (instance_live)
WHERE namespace = {namespace} AND task = {task} AND live_created_us IS NOT NULL
ORDER BY live_created_us DESC LIMIT {limit})
