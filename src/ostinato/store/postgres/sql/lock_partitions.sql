-- Locks partitions for a change of owner, in the order of every owner's locks. Waits for the open transactions of
-- their owners. Index: primary key.
SELECT partition, owner, epoch FROM partition_owner WHERE partition = ANY($1::int[]) ORDER BY partition FOR UPDATE
