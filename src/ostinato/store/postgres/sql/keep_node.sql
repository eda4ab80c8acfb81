-- Whether a node has its row, which nobody can delete until the transaction ends; its renewals go on meanwhile.
SELECT 1 FROM node WHERE id = $1 FOR KEY SHARE
