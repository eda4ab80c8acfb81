"""What people and programs are shown, as structs: one shape a noun for REST, ``--json`` and the console.

Instants are ISO 8601 texts in UTC, durations texts with units, null where there is nothing to say.
"""
