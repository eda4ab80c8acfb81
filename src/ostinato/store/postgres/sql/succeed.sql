-- running → success; returns the instances moved.
-- Index: primary key, beside which the state is written so that instance_state does not offer itself.
-- Changes a row only where exactly this attempt runs (I6).
UPDATE instance SET
  state = 'success', reason = '', started_us = move.started_us, finished_us = move.finished_us,
  result = move.result
FROM unnest($1::text[], $2::int[], $3::int[], $4::text[], $5::bigint[], $6::bigint[], $7::bytea[])
  AS move(id, partition, attempt, attempt_id, started_us, finished_us, result)
WHERE instance.id = move.id AND instance.partition = move.partition AND instance.state || '' = 'running'
  AND instance.attempt = move.attempt AND instance.attempt_id = move.attempt_id
RETURNING instance.id
