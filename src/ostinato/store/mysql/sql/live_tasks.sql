-- Tasks by name, and when the newest of their instances that have not ended was created; NULL where all have.
-- Index: instance_live, one seek a task.
SELECT namespace, task, MAX(live_created_us) FROM instance FORCE INDEX (instance_live)
{where} GROUP BY namespace, task ORDER BY namespace, task LIMIT {limit}
