-- Who has these idempotency keys.
-- Index: primary key, one seek a key.
SELECT held.namespace, held.task, held.`key`, held.instance_id, held.request_hash
FROM {table: namespace, task, key_} AS wanted
STRAIGHT_JOIN idempotency_key AS held FORCE INDEX (PRIMARY) ON held.namespace = wanted.namespace
  AND held.task = wanted.task AND held.`key` = wanted.key_
