-- terminal → pending as the next generation, for each (task version, payload, due, expires, reason, instance id,
-- partition, state, generation). The attempt number stays: it only ever rises.
-- Index: primary key. Changes a row only where partition, state and generation are as expected (I7).
UPDATE instance SET
  state = 'pending', generation = instance.generation + 1, counters = NULL, hold = NULL,
  task_version = move.column1, payload = move.column2, due_us = move.column3, expires_us = move.column4,
  reason = move.column5, attempt_id = '', worker_id = '', worker_name = '', assigned_us = NULL, started_us = NULL,
  finished_us = NULL, cancel_requested_us = NULL, cancel_reason = '', result = NULL, failure = NULL
FROM (VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)) AS move
WHERE instance.id = move.column6 AND instance.partition = move.column7
  AND instance.state = move.column8 AND instance.generation = move.column9
