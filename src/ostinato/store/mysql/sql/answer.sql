-- Answers requests; the first answer stands.
-- Locks: the requests, in the order given. Index: primary key.
UPDATE {table: id, partition_, code, message, instance_id, answered_us} AS answer
STRAIGHT_JOIN request FORCE INDEX (PRIMARY) ON request.id = answer.id AND request.`partition` = answer.partition_
  AND request.code IS NULL
SET request.code = answer.code, request.message = answer.message,
  request.answer_instance_id = answer.instance_id, request.answered_us = answer.answered_us
