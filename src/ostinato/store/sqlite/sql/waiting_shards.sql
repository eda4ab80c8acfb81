-- Shards of a fire that wait for others to end.
-- Index: instance_fire
SELECT rowid AS row_number FROM instance INDEXED BY instance_fire
WHERE fire_us IS NOT NULL AND fire_trigger = :fire_trigger AND fire_us = :fire_us AND hold = 'overlap'
ORDER BY shard
