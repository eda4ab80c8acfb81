-- How many due instances have not started: of those that wait in the queues, and of those that are held, up to {limit}
-- each.
-- Index: instance_due, a range for each partition and priority, and instance_held; these alone are read.
SELECT (
  SELECT COUNT(*) FROM (
    SELECT 1 FROM instance FORCE INDEX (instance_due)
    WHERE `partition` IN {partitions} AND queue_priority IN {priorities} AND due_us <= {now_us}
    LIMIT {limit}
  ) AS due
) + (
  SELECT COUNT(*) FROM (
    SELECT 1 FROM instance FORCE INDEX (instance_held)
    WHERE hold IN ('no_worker', 'busy', 'paused', 'overlap', 'budget') AND due_us <= {now_us}
    LIMIT {limit}
  ) AS held
)
