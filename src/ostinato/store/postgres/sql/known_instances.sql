-- Which ids exist, and which instances the fires have made already (I8): id, trigger, instant, shard.
-- Index: primary key; instance_fire.
SELECT known.id, '' AS fire_trigger, NULL::bigint AS fire_us, 0 AS shard
FROM unnest($1::text[]) AS wanted(id)
-- Each by itself: of a list the planner may think, on a table without statistics, that it is all of it.
CROSS JOIN LATERAL (SELECT instance.id FROM instance WHERE instance.id = wanted.id LIMIT 1) AS known
UNION ALL
SELECT instance.id, instance.fire_trigger, instance.fire_us, instance.shard
FROM unnest($2::text[], $3::bigint[], $4::int[]) AS fire(fire_trigger, fire_us, shard)
JOIN instance ON instance.fire_us IS NOT NULL AND instance.fire_trigger = fire.fire_trigger
  AND instance.fire_us = fire.fire_us AND instance.shard = fire.shard
