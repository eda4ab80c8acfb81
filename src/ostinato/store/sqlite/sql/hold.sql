-- Takes waiting rows out of the queue, for each (hold, reason, instance id, partition, state, attempt).
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET hold = move.column1, reason = move.column2
FROM (VALUES (?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column3 AND instance.partition = move.column4
  AND instance.state = move.column5 AND instance.attempt = move.column6
