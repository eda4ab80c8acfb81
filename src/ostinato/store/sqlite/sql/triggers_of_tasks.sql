-- Triggers of the tasks in a JSON array of [namespace, name], by id.
-- Index: task_trigger_task, one seek a task.
SELECT {columns}
FROM (
  SELECT json_extract(value, '$[0]') AS namespace, json_extract(value, '$[1]') AS task FROM json_each(?)
) AS wanted
CROSS JOIN task_trigger INDEXED BY task_trigger_task
  ON task_trigger.namespace = wanted.namespace AND task_trigger.task = wanted.task
ORDER BY task_trigger.id
