"""Column types of the schema, with what each dialect needs to mean the same by them.

Text compares by its bytes on every database, as SQLite's does: a server's own collation would take other
cases, accents or trailing spaces for the same name, and would order identifiers differently.
"""

from __future__ import annotations

from sqlalchemy import LargeBinary, String, Text
from sqlalchemy.dialects.mysql import LONGBLOB, LONGTEXT


def _word(length: int) -> String:
    """Text that is compared and indexed. MySQL's tables have their collation as a whole."""
    return String(length).with_variant(String(length, collation="C"), "postgresql")


#: Identifiers that Ostinato makes.
Id = _word(64)
#: Names that people give. 3 × 255 characters of up to 4 bytes just fit into a key of InnoDB (3072 bytes).
Name = _word(255)
#: Words out of a fixed list.
Word = _word(16)
LongerWord = _word(32)
#: MySQL's TEXT and BLOB end at 64 KiB, below a payload, a result or a traceback.
LongText = Text().with_variant(LONGTEXT(), "mysql", "mariadb")
Bytes = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
