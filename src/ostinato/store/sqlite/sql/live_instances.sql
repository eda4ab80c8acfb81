-- Oldest instances of a task that have not ended.
-- Index: instance_live.
SELECT rowid AS row_number FROM instance INDEXED BY instance_live
WHERE finished_us IS NULL AND namespace = :namespace AND task = :task
ORDER BY created_us LIMIT :limit
