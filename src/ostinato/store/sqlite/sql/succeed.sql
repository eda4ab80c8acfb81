-- running → success, for each (started, finished, result, instance id, partition, attempt, attempt id).
-- Index: primary key. Changes a row only where exactly this attempt runs (I6).
UPDATE instance SET
  state = 'success', reason = '', started_us = move.column1, finished_us = move.column2, result = move.column3
FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column4 AND instance.partition = move.column5 AND instance.state = 'running'
  AND instance.attempt = move.column6 AND instance.attempt_id = move.column7
