-- Records the wish to cancel, for each (instant, reason, instance id, partition, attempt); the first wish stands.
-- Index: primary key. Changes a row only where this attempt runs.
UPDATE instance SET
  cancel_reason = CASE WHEN cancel_requested_us IS NULL THEN move.column2 ELSE cancel_reason END,
  cancel_requested_us = coalesce(cancel_requested_us, move.column1)
FROM (VALUES (?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column3 AND instance.partition = move.column4 AND instance.state = 'running'
  AND instance.attempt = move.column5
