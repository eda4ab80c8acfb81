-- Locks instances in the order of their ids. Index: primary key.
SELECT 1 FROM instance WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE
