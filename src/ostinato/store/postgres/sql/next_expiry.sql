-- Earliest end of waiting. Index: instance_expiry.
SELECT expires_us FROM instance
WHERE expires_us IS NOT NULL AND (state = 'pending' OR state = 'retry_waiting') AND partition = ANY($1::int[])
ORDER BY expires_us LIMIT 1
