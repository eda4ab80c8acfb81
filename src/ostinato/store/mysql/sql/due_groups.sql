-- The earliest row in the queue of each partition and priority, where there is one.
-- Index: instance_due, which alone is read, one seek a pair. Neither server looks so by itself for a GROUP BY. The
-- whole order of the index is named: MySQL takes what comes from outside for no constant, and would sort the queue.
SELECT queue.partition_, queue.priority, (
    SELECT due_us FROM instance FORCE INDEX (instance_due)
    WHERE `partition` = queue.partition_ AND queue_priority = queue.priority
    ORDER BY `partition`, queue_priority, due_us LIMIT 1
  ) AS first_us
FROM {table: partition_, priority} AS queue HAVING first_us IS NOT NULL
