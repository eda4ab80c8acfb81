-- Owner and epoch of partitions: of the first list share-locked until the transaction ends, of the second read.
-- Index: primary key, locked in its order. Waits for a taker, and makes the next taker wait (I5).
WITH locked AS (
  SELECT partition, owner, epoch FROM partition_owner WHERE partition = ANY($1::int[]) ORDER BY partition FOR SHARE
)
SELECT partition, owner, epoch FROM locked
UNION ALL SELECT partition, owner, epoch FROM partition_owner WHERE partition = ANY($2::int[])
