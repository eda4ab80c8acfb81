-- What others may have committed lately that an owner has to act on: the newest instances, open requests and edits.
-- Indexes: primary key, request_open, task_changed, each from its end; no more rows than the limits say.
(SELECT 'instance' AS kind, id AS name FROM instance FORCE INDEX (PRIMARY) ORDER BY id DESC LIMIT 50)
UNION ALL
(SELECT 'request', id FROM request FORCE INDEX (request_open) WHERE open_created_us IS NOT NULL
ORDER BY open_created_us DESC, id DESC LIMIT 20)
UNION ALL
(SELECT 'task', CONCAT(changed_us, '/', namespace, '/', name) FROM task FORCE INDEX (task_changed)
WHERE changed_us IS NOT NULL ORDER BY changed_us DESC LIMIT 20)
