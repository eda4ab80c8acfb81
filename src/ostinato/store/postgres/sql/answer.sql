-- Answers requests; the first answer stands.
-- Index: primary key; the code is written so that request_open does not offer itself.
UPDATE request SET
  code = answer.code, message = answer.message, answer_instance_id = answer.instance_id,
  answered_us = answer.answered_us
FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::bigint[])
  AS answer(id, partition, code, message, instance_id, answered_us)
WHERE request.id = answer.id AND request.partition = answer.partition AND request.code || '' IS NULL
