-- Instances in running, by id. Index: instance_state, in its order.
SELECT id FROM instance FORCE INDEX (instance_state)
WHERE state = 'running' AND id > {after_id} AND `partition` IN {partitions}
ORDER BY id LIMIT {limit}
