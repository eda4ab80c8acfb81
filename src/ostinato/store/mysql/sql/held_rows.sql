-- Rows of one task, hold and priority, in order; several of these are merged by age.
-- Whatever their time: a clock that has been put back has not come to that of some of them yet.
-- Index: instance_held; the partition is looked at in the rows.
(SELECT priority, due_us, id FROM instance FORCE INDEX (instance_held)
WHERE hold = {hold} AND namespace = {namespace} AND task = {task} AND priority = {priority}
  AND `partition` IN {partitions}
ORDER BY due_us, id LIMIT {limit})
