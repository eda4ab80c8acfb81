-- Takes idempotency keys, for each (namespace, task, key, instance id, request hash, expiry), and now at the end.
-- Primary key. Replaces a key only once it has expired; a live one is left alone and not counted.
INSERT INTO idempotency_key (namespace, task, key, instance_id, request_hash, expires_us)
SELECT column1, column2, column3, column4, column5, column6 FROM (VALUES (?, ?, ?, ?, ?, ?)) AS wanted
WHERE true
ON CONFLICT (namespace, task, key) DO UPDATE SET
  instance_id = excluded.instance_id, request_hash = excluded.request_hash, expires_us = excluded.expires_us
WHERE idempotency_key.expires_us <= ?
