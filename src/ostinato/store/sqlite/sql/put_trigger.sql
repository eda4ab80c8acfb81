-- Inserts or replaces triggers in force.
-- Index: primary key.
INSERT OR REPLACE INTO task_trigger (
  id, namespace, task, partition, task_version, spec, created_us, next_us, last_us
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
