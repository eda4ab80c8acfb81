-- Appends to the history; the sequence number, given in the order of the rows, is the order.
INSERT INTO history (
  instance_id, `partition`, at_us, kind, sentence, generation, attempt, attempt_id, worker_name, code, category,
  started_us, due_us, `by`, unconditional, failure
) VALUES {rows}
