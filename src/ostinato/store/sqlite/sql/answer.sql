-- Answers requests, for each (code, message, instance id, instant, request id, partition); the first answer stands.
-- Index: primary key.
UPDATE request SET
  code = answer.column1, message = answer.column2, answer_instance_id = answer.column3, answered_us = answer.column4
FROM (VALUES (?, ?, ?, ?, ?, ?)) AS answer
WHERE request.id = answer.column5 AND request.partition = answer.column6 AND request.code IS NULL
