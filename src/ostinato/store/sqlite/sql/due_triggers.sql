-- Triggers of tasks that are neither paused nor disabled, by their next fire.
-- Index: task_trigger_next, primary key of task.
SELECT task_trigger.id, task_trigger.namespace, task, task_trigger.partition, task_version, spec,
  task_trigger.created_us, next_us, last_us
FROM task_trigger INDEXED BY task_trigger_next
JOIN task ON task.namespace = task_trigger.namespace AND task.name = task_trigger.task
WHERE next_us IS NOT NULL AND next_us BETWEEN :from_us AND :until_us AND NOT paused AND NOT disabled {owned}
ORDER BY next_us, task_trigger.id LIMIT :limit
