-- One kind of move with its proof, in one statement that is the whole transaction, for (partitions that are written,
-- their owners, their epochs, the same of other partitions, then what the move takes). Returns the partitions whose
-- proof holds, the instances moved, and their payloads where they are asked for.
-- Index: primary keys. Partitions are locked in their order, all of them before the first instance, and a wait for a
-- taker is over before owner and epoch are looked at (I5).
WITH locked AS MATERIALIZED (
  SELECT partition, owner, epoch FROM partition_owner WHERE partition = ANY($1::int[]) ORDER BY partition FOR SHARE
), proven AS MATERIALIZED (
  SELECT locked.partition FROM locked
  JOIN unnest($1::int[], $2::text[], $3::bigint[]) AS claim(partition, owner, epoch)
    ON claim.partition = locked.partition AND claim.owner = locked.owner AND claim.epoch = locked.epoch
), moved AS (
  {move}
)
SELECT
  ARRAY(
    SELECT partition FROM proven
    UNION ALL
    SELECT other.partition FROM unnest($4::int[], $5::text[], $6::bigint[]) AS claim(partition, owner, epoch)
    JOIN partition_owner AS other
      ON other.partition = claim.partition AND other.owner = claim.owner AND other.epoch = claim.epoch
  ) AS proven,
  ARRAY(SELECT id::text FROM moved) AS moved,
  ARRAY(SELECT payload FROM moved WHERE payload IS NOT NULL) AS payloads
