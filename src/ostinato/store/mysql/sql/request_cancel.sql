-- Records the wish to cancel; the first wish stands. A row is changed, and counted, only where this attempt runs.
-- The reason comes before the time that it looks at: columns are set in the order written.
-- Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, attempt, requested_us, reason} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = 'running' AND instance.attempt = move.attempt
SET instance.cancel_reason =
    CASE WHEN instance.cancel_requested_us IS NULL THEN move.reason ELSE instance.cancel_reason END,
  instance.cancel_requested_us = coalesce(instance.cancel_requested_us, move.requested_us)
