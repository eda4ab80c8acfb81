-- Shards of fires that wait for others to end.
-- Index: instance_fire
SELECT instance.id FROM unnest($1::text[], $2::bigint[]) AS wanted(fire_trigger, fire_us)
JOIN instance ON instance.fire_us IS NOT NULL AND instance.fire_trigger = wanted.fire_trigger
  AND instance.fire_us = wanted.fire_us
WHERE instance.hold = 'overlap'
ORDER BY instance.fire_us, instance.shard
