-- running → retry_waiting, failed or cancelled; a terminal state leaves the due time as it was. A row is changed, and
-- counted, only where exactly this attempt runs (I6), and no retry or failure is granted where a wish to cancel is on
-- record. Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, attempt, attempt_id, state, reason, counters, due_us, expires_us, started_us, finished_us, failure} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = 'running' AND instance.attempt = move.attempt AND instance.attempt_id = move.attempt_id
  AND (instance.cancel_requested_us IS NULL OR move.state = 'cancelled')
SET instance.state = move.state, instance.reason = move.reason, instance.counters = move.counters,
  instance.due_us = CASE move.state WHEN 'retry_waiting' THEN move.due_us ELSE instance.due_us END,
  instance.expires_us = CASE move.state WHEN 'retry_waiting' THEN move.expires_us ELSE instance.expires_us END,
  instance.started_us = move.started_us, instance.finished_us = move.finished_us,
  instance.failure = coalesce(move.failure, instance.failure)
