-- terminal → pending as the next generation; the attempt number stays, since it only ever rises. A row is changed, and
-- counted, only where partition, state and generation are as expected (I7).
-- Locks: the instances, in the order given. Index: primary key.
UPDATE {table: id, partition_, state, generation, task_version, payload, due_us, expires_us, reason} AS move
STRAIGHT_JOIN instance FORCE INDEX (PRIMARY) ON instance.id = move.id AND instance.`partition` = move.partition_
  AND instance.state = move.state AND instance.generation = move.generation
SET instance.state = 'pending', instance.generation = instance.generation + 1, instance.counters = NULL,
  instance.hold = NULL, instance.task_version = move.task_version, instance.payload = move.payload,
  instance.due_us = move.due_us, instance.expires_us = move.expires_us, instance.reason = move.reason,
  instance.attempt_id = '', instance.worker_id = '', instance.worker_name = '', instance.assigned_us = NULL,
  instance.started_us = NULL, instance.finished_us = NULL, instance.cancel_requested_us = NULL,
  instance.cancel_reason = '', instance.result = NULL, instance.failure = NULL
