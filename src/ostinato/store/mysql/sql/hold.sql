-- Takes waiting rows out of the queue. A row is changed, and counted, only where partition, state and attempt are as
-- expected. Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, state, attempt, hold, reason} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = move.state AND instance.attempt = move.attempt
SET instance.hold = move.hold, instance.reason = move.reason
