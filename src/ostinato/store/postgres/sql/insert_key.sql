-- Takes idempotency keys in the order given; returns those taken. The last parameter is now.
-- Primary key. Waits for whoever is taking the same key. Replaces a key only once it has expired; a live one is
-- left alone.
INSERT INTO idempotency_key (namespace, task, key, instance_id, request_hash, expires_us)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[])
ON CONFLICT (namespace, task, key) DO UPDATE SET
  instance_id = excluded.instance_id, request_hash = excluded.request_hash, expires_us = excluded.expires_us
WHERE idempotency_key.expires_us <= $7::bigint
RETURNING namespace, task, key
