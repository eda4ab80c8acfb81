"""``PostgresStore``."""
