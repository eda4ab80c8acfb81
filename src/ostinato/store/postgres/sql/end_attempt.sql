-- running → retry_waiting, failed or cancelled; returns the instances moved. A terminal state leaves the due time
-- as it was.
-- Index: primary key, beside which the state is written so that instance_state does not offer itself.
-- Changes a row only where exactly this attempt runs (I6), and does not grant a retry or a
-- failure where a wish to cancel is on record.
UPDATE instance SET
  state = move.state, reason = move.reason, counters = move.counters,
  due_us = CASE move.state WHEN 'retry_waiting' THEN move.due_us ELSE instance.due_us END,
  expires_us = CASE move.state WHEN 'retry_waiting' THEN move.expires_us ELSE instance.expires_us END,
  started_us = move.started_us, finished_us = move.finished_us,
  failure = coalesce(move.failure, instance.failure)
FROM unnest(
    $1::text[], $2::int[], $3::int[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
    $10::bigint[], $11::bigint[], $12::text[]
  ) AS move(
    id, partition, attempt, attempt_id, state, reason, counters, due_us, expires_us, started_us, finished_us, failure
  )
WHERE instance.id = move.id AND instance.partition = move.partition AND instance.state || '' = 'running'
  AND instance.attempt = move.attempt AND instance.attempt_id = move.attempt_id
  AND (instance.cancel_requested_us IS NULL OR move.state = 'cancelled')
RETURNING instance.id
