-- Tasks that have held instances. Index: instance_held, one seek for each task and hold; then, for each, its rows up to
-- the first one of the partitions. In one step neither server would do so: it would read every held row.
SELECT named.namespace, named.task, named.hold
FROM (
  SELECT DISTINCT hold, namespace, task FROM instance FORCE INDEX (instance_held)
  WHERE hold IN ('no_worker', 'busy', 'paused', 'overlap', 'budget')
) AS named
WHERE (
  SELECT 1 FROM instance AS held FORCE INDEX (instance_held)
  WHERE held.hold = named.hold AND held.namespace = named.namespace AND held.task = named.task
    AND held.`partition` IN {partitions}
  LIMIT 1
) IS NOT NULL
