-- waiting or blocked → failed, cancelled or skipped, for each (state, reason, finished, failure, instance id,
-- partition, state before, attempt).
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET
  state = move.column1, reason = move.column2, hold = NULL, finished_us = move.column3,
  failure = coalesce(move.column4, instance.failure)
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column5 AND instance.partition = move.column6
  AND instance.state = move.column7 AND instance.attempt = move.column8
