#!/bin/sh
# Copies the sales database into the vault, with a checksum that is verified before it counts.
#
# The vault is a volume that may not be there yet: exit 75 (EX_TEMPFAIL) asks for another try.
set -eu

if [ ! -d "$VAULT" ]; then
    echo "the vault is not mounted" >&2
    exit 75
fi

# SQLite's own backup, because a copy of the file could be torn by a write.
"$PYTHON" -c '
import sqlite3, sys
source, target = sqlite3.connect(sys.argv[1]), sqlite3.connect(sys.argv[2])
source.backup(target)
target.close(), source.close()
' "$SALES" "$VAULT/sales.db.part"

mv "$VAULT/sales.db.part" "$VAULT/sales.db"
cd "$VAULT"
sha256sum sales.db > sales.db.sha256
sha256sum --check sales.db.sha256
