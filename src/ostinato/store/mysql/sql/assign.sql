-- waiting → running. A row is changed, and counted, only where partition, state and attempt are as expected.
-- Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, state, attempt, attempt_id, worker_id, worker_name, assigned_us} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = move.state AND instance.attempt = move.attempt
SET instance.state = 'running', instance.hold = NULL, instance.reason = '', instance.attempt = instance.attempt + 1,
  instance.attempt_id = move.attempt_id, instance.worker_id = move.worker_id,
  instance.worker_name = move.worker_name, instance.assigned_us = move.assigned_us, instance.started_us = NULL
