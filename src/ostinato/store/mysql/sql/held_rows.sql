-- Rows of one task, hold and priority, in order, from the first one's time on; several of these are merged by age.
-- Whatever their time: a clock that has been put back has not come to that of some of them yet.
-- Index: instance_held; the partition is looked at in the rows.
(SELECT {query}, priority, due_us, id FROM instance FORCE INDEX (instance_held)
WHERE hold = {hold} AND namespace = {namespace} AND task = {task} AND priority = {priority}
  AND due_us >= {first_us} AND `partition` IN {partitions}
ORDER BY due_us, id LIMIT {limit})
