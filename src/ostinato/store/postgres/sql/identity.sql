-- The cluster, its timeline as it is being written, and the database: another text is another server or history.
SELECT concat_ws(
  ':', (SELECT system_identifier FROM pg_control_system()),
  left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
  (SELECT oid FROM pg_database WHERE datname = current_database())
)
