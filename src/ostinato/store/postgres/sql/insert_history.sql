-- Appends to the history in the order given; the sequence number is the order.
INSERT INTO history (
  instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id, worker_name, code, category,
  started_us, due_us, by, unconditional, failure
)
SELECT
  instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id, worker_name, code, category,
  started_us, due_us, by, unconditional, failure
FROM unnest(
    $1::text[], $2::int[], $3::bigint[], $4::text[], $5::text[], $6::int[], $7::int[], $8::text[], $9::text[],
    $10::text[], $11::text[], $12::bigint[], $13::bigint[], $14::text[], $15::boolean[], $16::text[]
  ) WITH ORDINALITY AS entry(
    instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id, worker_name, code, category,
    started_us, due_us, by, unconditional, failure, place
  )
ORDER BY place
