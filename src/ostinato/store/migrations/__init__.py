"""Alembic revisions of the schema, run from the package's own data.

A file's name says when it runs in a rolling upgrade: ``pre`` before the new code, ``post`` after the last
node of the old code has gone. What all of them make of an empty SQLite file is kept as a text beside its
adapter: ``python tools/generate_sqlite_schema.py`` after each change here.
"""

#: Every revision, oldest first; a test compares them with the files. Known here without Alembic, whose import
#: takes longer than all of opening a database that has the newest.
REVISIONS = ("0001", "0002", "0003", "0004", "0005")
HEAD_REVISION = REVISIONS[-1]

#: Where a server's database says its revision. Not Alembic's own name, which the other tables of a database
#: that Ostinato shares with an application may have taken.
SERVER_VERSION_TABLE = "ostinato_schema"
#: Where MySQL and MariaDB say that a change of the schema has begun and not ended; there only meanwhile.
SERVER_CHANGE_TABLE = "ostinato_schema_change"
SQLITE_VERSION_TABLE = "alembic_version"
