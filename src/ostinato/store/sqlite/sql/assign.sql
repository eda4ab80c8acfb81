-- waiting → running, for each (attempt id, worker id, worker name, instant, instance id, partition, state, attempt).
-- Index: primary key. Changes a row only where partition, state and attempt are as expected.
UPDATE instance SET
  state = 'running', hold = NULL, reason = '', attempt = instance.attempt + 1,
  attempt_id = move.column1, worker_id = move.column2, worker_name = move.column3,
  assigned_us = move.column4, started_us = NULL
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column5 AND instance.partition = move.column6
  AND instance.state = move.column7 AND instance.attempt = move.column8
