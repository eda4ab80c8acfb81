-- Earliest end of waiting. Index: instance_expiry, one seek.
SELECT expires_us FROM instance INDEXED BY instance_expiry
WHERE expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting') {owned}
ORDER BY expires_us LIMIT 1
