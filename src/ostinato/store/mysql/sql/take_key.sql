-- Takes idempotency keys; replaces a key only once it has expired. The last column of a row is now.
-- Columns are set in the order written: the expiry last, since the others look at it.
-- Locks: the keys, in the order given, until the transaction ends; who comes second waits. Index: primary key.
INSERT INTO idempotency_key (namespace, task, `key`, instance_id, request_hash, expires_us)
SELECT wanted.namespace, wanted.task, wanted.key_, wanted.instance_id, wanted.request_hash, wanted.expires_us
FROM {table: namespace, task, key_, instance_id, request_hash, expires_us, now_us} AS wanted
ON DUPLICATE KEY UPDATE
  instance_id = CASE WHEN idempotency_key.expires_us <= wanted.now_us THEN wanted.instance_id
    ELSE idempotency_key.instance_id END,
  request_hash = CASE WHEN idempotency_key.expires_us <= wanted.now_us THEN wanted.request_hash
    ELSE idempotency_key.request_hash END,
  expires_us = CASE WHEN idempotency_key.expires_us <= wanted.now_us THEN wanted.expires_us
    ELSE idempotency_key.expires_us END
