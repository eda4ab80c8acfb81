-- Where the cluster's name may not be read: which process answers. A restart then counts as another server.
SELECT concat_ws(
  ':', (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint, inet_server_addr(), inet_server_port(),
  (SELECT oid FROM pg_database WHERE datname = current_database())
)
