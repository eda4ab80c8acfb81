-- Earliest end of waiting. Index: instance_expiry, from its beginning to the first row of the partitions.
SELECT wait_expires_us FROM instance FORCE INDEX (instance_expiry)
WHERE wait_expires_us IS NOT NULL AND `partition` IN {partitions}
ORDER BY wait_expires_us LIMIT 1
