-- waiting → running; returns the instances moved.
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET
  state = 'running', hold = NULL, reason = '', attempt = instance.attempt + 1,
  attempt_id = move.attempt_id, worker_id = move.worker_id, worker_name = move.worker_name,
  assigned_us = move.assigned_us, started_us = NULL
FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bigint[])
  AS move(id, partition, state, attempt, attempt_id, worker_id, worker_name, assigned_us)
WHERE instance.id = move.id AND instance.partition = move.partition
  AND instance.state = move.state AND instance.attempt = move.attempt
RETURNING instance.id
