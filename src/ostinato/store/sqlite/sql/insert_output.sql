-- Stores output, for each (instance id, attempt, sequence, attempt id, instant, stream, text).
-- Primary key: a repeated chunk changes nothing. Output of a deleted instance would never be deleted: it is dropped.
INSERT INTO output (instance_id, attempt, sequence, attempt_id, at_us, stream, text)
SELECT * FROM (VALUES (?, ?, ?, ?, ?, ?, ?)) AS chunk
WHERE EXISTS (SELECT 1 FROM instance WHERE instance.id = chunk.column1)
ON CONFLICT DO NOTHING
