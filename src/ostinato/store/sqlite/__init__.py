"""The SQLite adapter: one file, one scheduler node, any number of submitters."""
