-- Inserts new instances; the columns left out say that nothing has happened yet.
-- Unique: primary key, and instance_fire (I8). Fails as a whole where a row exists by either.
INSERT INTO instance (
  id, namespace, task, task_version, `partition`, state, priority, due_us, created_us, payload, hold, reason,
  expires_us, fire_trigger, fire_us, shard, shard_total, `key`, finished_us
) VALUES {rows}
