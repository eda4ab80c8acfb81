"""Alembic revisions of the schema, run from the package's own data.

A file's name says when it runs in a rolling upgrade: ``pre`` before the new code, ``post`` after the last
node of the old code has gone.
"""

#: Newest revision. A database that holds it needs no Alembic, whose import takes longer than all of opening.
HEAD_REVISION = "0003"
