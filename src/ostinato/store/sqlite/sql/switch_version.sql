-- Says which version's triggers are in force, for each (version, namespace, name, partition).
-- Index: primary key. Changes nothing of a task that has been deleted.
UPDATE task SET scheduled_version = switch.column1
FROM (VALUES (?, ?, ?, ?)) AS switch
WHERE task.namespace = switch.column2 AND task.name = switch.column3 AND task.partition = switch.column4
