-- Who holds these keys; the last parameter is now. Index: primary key.
SELECT held.namespace, held.task, held.key, held.instance_id, held.request_hash
FROM unnest($1::text[], $2::text[], $3::text[]) AS wanted(namespace, task, key)
JOIN idempotency_key AS held ON held.namespace = wanted.namespace AND held.task = wanted.task
  AND held.key = wanted.key AND held.expires_us > $4::bigint
