-- Gives partitions, which are locked, to an owner.
-- Index: primary key.
UPDATE {table: partition_, owner, epoch} AS taken
STRAIGHT_JOIN partition_owner FORCE INDEX (PRIMARY) ON partition_owner.`partition` = taken.partition_
SET partition_owner.owner = taken.owner, partition_owner.epoch = taken.epoch
