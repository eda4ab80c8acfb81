"""The two ways from an app to its scheduler: over HTTP, and straight into the database."""
