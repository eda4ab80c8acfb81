-- The highest priority in the queues of each partition, where there is one.
-- Index: instance_due, which alone is read from its end, one seek a partition: what is in no queue has NULL there, and
-- comes first. The whole order of the index is named, as for the groups.
SELECT queue.partition_, (
    SELECT queue_priority FROM instance FORCE INDEX (instance_due)
    WHERE `partition` = queue.partition_
    ORDER BY `partition` DESC, queue_priority DESC, due_us DESC, id DESC LIMIT 1
  ) AS priority
FROM {table: partition_} AS queue HAVING priority IS NOT NULL
