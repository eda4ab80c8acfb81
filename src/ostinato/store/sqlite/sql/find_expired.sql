-- Waiting rows that can no longer start in time, earliest first.
-- Index: instance_expiry.
SELECT rowid AS row_number FROM instance INDEXED BY instance_expiry
WHERE expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting')
  AND expires_us < :now_us {owned}
ORDER BY expires_us, id LIMIT :limit
