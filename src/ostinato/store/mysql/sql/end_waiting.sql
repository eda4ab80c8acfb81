-- waiting or blocked → failed, cancelled or skipped. A row is changed, and counted, only where partition, state and
-- attempt are as expected. Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, state_before, attempt, state, reason, finished_us, failure} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = move.state_before AND instance.attempt = move.attempt
SET instance.state = move.state, instance.reason = move.reason, instance.hold = NULL,
  instance.finished_us = move.finished_us, instance.failure = coalesce(move.failure, instance.failure)
