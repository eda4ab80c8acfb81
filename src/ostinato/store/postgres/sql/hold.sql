-- Takes waiting rows out of the queue; returns the instances held.
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET hold = move.hold, reason = move.reason
FROM unnest($1::text[], $2::int[], $3::text[], $4::int[], $5::text[], $6::text[])
  AS move(id, partition, state, attempt, hold, reason)
WHERE instance.id = move.id AND instance.partition = move.partition
  AND instance.state = move.state AND instance.attempt = move.attempt
RETURNING instance.id
