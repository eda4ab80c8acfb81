-- The earliest row held so of each task, hold and priority, where there is one: most tasks are held for one reason and
-- at one priority, and a branch of a statement costs more than a seek.
-- Index: instance_held, which alone is read, one seek a row of the table.
SELECT held.query, held.hold_, held.priority_, (
    SELECT due_us FROM instance FORCE INDEX (instance_held)
    WHERE hold = held.hold_ AND namespace = held.namespace_ AND task = held.task_ AND priority = held.priority_
    ORDER BY due_us LIMIT 1
  ) AS first_us
FROM {table: query, namespace_, task_, hold_, priority_} AS held HAVING first_us IS NOT NULL
