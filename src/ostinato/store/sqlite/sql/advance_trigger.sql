-- Moves a trigger to its next fire, only from where its owner saw it.
-- Index: primary key.
UPDATE task_trigger SET next_us = :next_us, last_us = :last_us
WHERE id = :trigger_id AND partition = :partition AND next_us IS :expected_next_us
