"""Container engines: what executor, guardian, reaper and doctor say to one over its UNIX socket."""
