-- Waiting rows that can no longer start in time, earliest first.
-- Index: instance_expiry.
SELECT {columns} FROM instance
WHERE expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting')
  AND expires_us < $1::bigint AND partition = ANY($2::int[])
ORDER BY expires_us, id LIMIT $3::bigint
