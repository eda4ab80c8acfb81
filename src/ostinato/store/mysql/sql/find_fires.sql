-- Instances that the same fires have made already (I8).
-- Index: instance_fire, one seek a fire.
SELECT instance.id, instance.fire_trigger, instance.fire_us, instance.shard
FROM {table: fire_trigger, fire_us, shard} AS wanted
STRAIGHT_JOIN instance FORCE INDEX (instance_fire) ON instance.fire_trigger = wanted.fire_trigger
  AND instance.fire_us = wanted.fire_us AND instance.shard = wanted.shard
