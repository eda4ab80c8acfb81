-- Moves triggers to their next fire, only from where their owner saw them; returns those moved.
-- Index: primary key.
UPDATE task_trigger SET next_us = advance.next_us, last_us = advance.last_us
FROM unnest($1::text[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[])
  AS advance(id, partition, expected_next_us, next_us, last_us)
WHERE task_trigger.id = advance.id AND task_trigger.partition = advance.partition
  AND task_trigger.next_us IS NOT DISTINCT FROM advance.expected_next_us
RETURNING task_trigger.id
