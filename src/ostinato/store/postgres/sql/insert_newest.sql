-- Inserts one new instance, if the version that it pins is the newest of its task, and that is not disabled. Returns
-- its id.
-- Unique: primary key, and instance_fire (I8). Fails where a row exists by either. Index: primary key of the task.
INSERT INTO instance (
  id, namespace, task, task_version, partition, state, priority, due_us, created_us, payload, hold, reason,
  expires_us, fire_trigger, fire_us, shard, shard_total, key, finished_us
)
SELECT $1::text, $2::text, $3::text, $4::bigint, $5::int, $6::text, $7::smallint, $8::bigint, $9::bigint, $10::bytea,
  $11::text, $12::text, $13::bigint, $14::text, $15::bigint, $16::int, $17::int, $18::text, $19::bigint
WHERE EXISTS (
  SELECT FROM task WHERE namespace = $2::text AND name = $3::text AND version = $4::bigint AND NOT disabled
)
RETURNING id
