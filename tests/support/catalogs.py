"""What a server's own catalogue says of a database: all that a migration could get wrong."""

from __future__ import annotations

import re
from typing import TypeAlias

from sqlalchemy import Connection, text

Catalog: TypeAlias = dict[str, list[str]]

_POSTGRES = {
    "columns": """
        SELECT c.relname, concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            (SELECT collname FROM pg_collation WHERE oid = a.attcollation AND collname <> 'default'),
            a.attidentity, pg_get_expr(d.adbin, d.adrelid))
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'""",
    "indexes": "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "constraints": """
        SELECT conrelid::regclass::text, conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace""",
    "options": """
        SELECT relname, array_to_string(ARRAY(SELECT unnest(reloptions) ORDER BY 1), ',') FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'""",
}


def catalog(connection: Connection) -> Catalog:
    """Of each table, columns, keys, indexes, conditions and options, sorted."""
    found: Catalog = {}
    if connection.dialect.name == "postgresql":
        for what, query in _POSTGRES.items():
            for table, line in connection.execute(text(query)):
                found.setdefault(table.strip('"'), []).append(f"{what}: {line}")
    else:
        for (table,) in connection.execute(text("SHOW TABLES")).all():
            (_, definition) = connection.execute(text(f"SHOW CREATE TABLE `{table}`")).one()
            lines = re.sub(r" AUTO_INCREMENT=\d+", "", definition).splitlines()
            found[table] = [line.strip().rstrip(",") for line in lines]
    return {table: sorted(lines) for table, lines in found.items()}
