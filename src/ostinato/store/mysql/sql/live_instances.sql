-- Oldest instances of a task that have not ended. Index: instance_live, in its order.
(SELECT id FROM instance FORCE INDEX (instance_live)
WHERE namespace = {namespace} AND task = {task} AND live_created_us IS NOT NULL
ORDER BY live_created_us, id LIMIT {limit})
