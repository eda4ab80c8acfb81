-- Live rows of tasks with their newest definitions. Index: primary keys of both.
SELECT
  task.version, task.partition, task.paused, task.disabled, task.scheduled_version, task.created_us, task.updated_us,
  task_definition.definition, task.origin
FROM unnest($1::text[], $2::text[]) AS wanted(namespace, name)
JOIN task ON task.namespace = wanted.namespace AND task.name = wanted.name
JOIN task_definition ON task_definition.namespace = task.namespace AND task_definition.name = task.name
  AND task_definition.version = task.version
