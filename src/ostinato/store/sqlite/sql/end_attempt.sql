-- running → retry_waiting, failed or cancelled, for each (state, reason, counters, due, expires, started, finished,
-- failure, instance id, partition, attempt, attempt id). A terminal state leaves the due time as it was.
-- Index: primary key. Changes a row only where exactly this attempt runs (I6), and does not grant a retry or a
-- failure where a wish to cancel is on record.
UPDATE instance SET
  state = move.column1, reason = move.column2, counters = move.column3,
  due_us = CASE move.column1 WHEN 'retry_waiting' THEN move.column4 ELSE instance.due_us END,
  expires_us = CASE move.column1 WHEN 'retry_waiting' THEN move.column5 ELSE instance.expires_us END,
  started_us = move.column6, finished_us = move.column7, failure = coalesce(move.column8, instance.failure)
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column9 AND instance.partition = move.column10 AND instance.state = 'running'
  AND instance.attempt = move.column11 AND instance.attempt_id = move.column12
  AND (instance.cancel_requested_us IS NULL OR move.column1 = 'cancelled')
