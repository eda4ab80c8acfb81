-- The earliest later row in the queue of one partition and priority.
-- Index: instance_due, one seek before the statement is run.
(SELECT {partition}, {priority}, MIN(due_us), NULL FROM instance FORCE INDEX (instance_due)
WHERE `partition` = {partition} AND queue_priority = {priority} AND due_us > {now_us})
