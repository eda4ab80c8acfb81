-- Shards of fires that wait for others to end; the fires are pairs of trigger and instant.
-- Index: instance_fire
SELECT id FROM instance FORCE INDEX (instance_fire)
WHERE (fire_trigger, fire_us) IN ({fires}) AND hold = 'overlap'
ORDER BY fire_us, shard
