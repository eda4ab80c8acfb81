-- Gives partitions that are locked to a node, with their epoch + 1. Index: primary key.
UPDATE partition_owner SET owner = $1, epoch = epoch + 1 WHERE partition = ANY($2::int[])
