-- Waiting rows that can no longer start in time, earliest first. Index: instance_expiry, in its order.
SELECT id FROM instance FORCE INDEX (instance_expiry)
WHERE wait_expires_us < {now_us} AND `partition` IN {partitions}
ORDER BY wait_expires_us, id LIMIT {limit}
