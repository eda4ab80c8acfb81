-- Which of these session locks nobody holds. Shared, so that watchers do not see each other; ends with the
-- transaction.
SELECT key FROM unnest($1::bigint[]) AS wanted(key) WHERE pg_try_advisory_xact_lock_shared(key)
