-- terminal → pending as the next generation; returns the instances moved. The attempt number stays: it only ever
-- rises.
-- Index: primary key. Changes a row only where partition, state and generation are as expected (I7).
UPDATE instance SET
  state = 'pending', generation = instance.generation + 1, counters = NULL, hold = NULL,
  task_version = move.task_version, payload = move.payload, due_us = move.due_us, expires_us = move.expires_us,
  reason = move.reason, attempt_id = '', worker_id = '', worker_name = '', assigned_us = NULL, started_us = NULL,
  finished_us = NULL, cancel_requested_us = NULL, cancel_reason = '', result = NULL, failure = NULL
FROM unnest(
    $1::text[], $2::int[], $3::text[], $4::int[], $5::bigint[], $6::bytea[], $7::bigint[], $8::bigint[], $9::text[]
  ) AS move(id, partition, state, generation, task_version, payload, due_us, expires_us, reason)
WHERE instance.id = move.id AND instance.partition = move.partition
  AND instance.state = move.state AND instance.generation = move.generation
RETURNING instance.id
