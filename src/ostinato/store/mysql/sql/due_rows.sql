-- Due rows in the queue of one partition and priority, in order, from the first one's due time on; several of these
-- are merged by age.
-- Index: instance_due, which alone is read.
(SELECT {partition}, {priority}, due_us, id FROM instance FORCE INDEX (instance_due)
WHERE `partition` = {partition} AND queue_priority = {priority} AND due_us >= {first_us}
  AND due_us <= {now_us}
ORDER BY due_us, id LIMIT {limit})
