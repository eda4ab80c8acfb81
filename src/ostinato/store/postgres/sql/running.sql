-- Instances in running, by id. Index: instance_state, whose condition is repeated here to be recognised.
SELECT {columns} FROM instance
WHERE state = 'running' AND state <> 'pending' AND state <> 'success' AND id > $1 AND partition = ANY($2::int[])
ORDER BY id LIMIT $3::bigint
