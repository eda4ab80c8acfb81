-- waiting or blocked → failed, cancelled or skipped; returns the instances moved.
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET
  state = move.target, reason = move.reason, hold = NULL, finished_us = move.finished_us,
  failure = coalesce(move.failure, instance.failure)
FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::text[], $7::bigint[], $8::text[])
  AS move(id, partition, state, attempt, target, reason, finished_us, failure)
WHERE instance.id = move.id AND instance.partition = move.partition
  AND instance.state = move.state AND instance.attempt = move.attempt
RETURNING instance.id
