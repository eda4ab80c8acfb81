-- Distinct tasks that have held instances, and their holds. Index: instance_held.
SELECT DISTINCT namespace, task, hold FROM instance
WHERE hold IS NOT NULL AND partition = ANY($1::int[]) ORDER BY namespace, task, hold
