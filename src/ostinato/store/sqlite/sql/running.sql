-- Instances in running, by id. Index: instance_state, whose condition is repeated here to be recognised.
SELECT rowid AS row_number FROM instance INDEXED BY instance_state
WHERE state = 'running' AND state <> 'pending' AND state <> 'success' AND id > :after_id {owned}
ORDER BY id LIMIT :limit
