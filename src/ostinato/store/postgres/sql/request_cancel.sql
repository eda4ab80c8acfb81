-- Records the wish to cancel; the first wish stands. Returns the instances that run this attempt.
-- Index: primary key, beside which the state is written so that instance_state does not offer itself.
-- Changes a row only where this attempt runs.
UPDATE instance SET
  cancel_reason = CASE WHEN cancel_requested_us IS NULL THEN move.reason ELSE cancel_reason END,
  cancel_requested_us = coalesce(cancel_requested_us, move.requested_us)
FROM unnest($1::text[], $2::int[], $3::int[], $4::bigint[], $5::text[])
  AS move(id, partition, attempt, requested_us, reason)
WHERE instance.id = move.id AND instance.partition = move.partition AND instance.state || '' = 'running'
  AND instance.attempt = move.attempt
RETURNING instance.id
