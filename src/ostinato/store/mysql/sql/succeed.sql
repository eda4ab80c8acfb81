-- running → success. A row is changed, and counted, only where exactly this attempt runs (I6).
-- Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, attempt, attempt_id, started_us, finished_us, result} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = 'running' AND instance.attempt = move.attempt AND instance.attempt_id = move.attempt_id
SET instance.state = 'success', instance.reason = '', instance.started_us = move.started_us,
  instance.finished_us = move.finished_us, instance.result = move.result
