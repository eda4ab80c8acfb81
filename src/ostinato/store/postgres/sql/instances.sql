-- Instances in the order of the ids given. Index: primary key.
SELECT {columns} FROM unnest($1::text[]) WITH ORDINALITY AS wanted(wanted_id, place)
JOIN instance ON instance.id = wanted_id ORDER BY place
