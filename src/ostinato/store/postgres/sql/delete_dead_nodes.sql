-- Deletes the rows of nodes whose counter is still the one with which they were found dead.
DELETE FROM node WHERE id IN (
  SELECT node.id FROM unnest($1::text[], $2::bigint[]) AS dead(id, renewals)
  JOIN node ON node.id = dead.id AND node.renewals = dead.renewals ORDER BY node.id FOR UPDATE OF node
)
