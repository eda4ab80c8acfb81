-- Moves triggers to their next fire, only from where their owner saw them; others are not counted.
-- Locks: the triggers, in the order given. Index: primary key.
UPDATE {table: id, partition_, expected_next_us, next_us, last_us} AS move
STRAIGHT_JOIN task_trigger FORCE INDEX (PRIMARY) ON task_trigger.id = move.id
  AND task_trigger.`partition` = move.partition_ AND task_trigger.next_us <=> move.expected_next_us
SET task_trigger.next_us = move.next_us, task_trigger.last_us = move.last_us
