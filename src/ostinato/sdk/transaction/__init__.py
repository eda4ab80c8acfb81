"""Submissions inside the user's own transaction: an instance exists exactly if that transaction commits.

``App.submit(…, connection=connection)`` writes the instance and its idempotency key with statements on the
user's connection and nothing else: it neither begins nor ends a transaction, opens no connection, and calls
no scheduler. Who commits and who rolls back is the user.

::

    connections.py   what is asked of a connection: run a statement, tell whether a transaction is open
    recognize.py     which driver's connection it is, without importing any driver
    statements.py    the SQL, in each dialect and each driver's way of marking a value
    steps.py         what is read, checked and written, in which order; knows neither driver nor loop
    submit.py        carries out the steps, at once or awaiting

What is wrong with a submission is found by reading, before anything is written. A key that is another's can
only be found by writing it, since its holder may not have committed yet; what has been written is then
deleted again. There is no savepoint: PostgreSQL slows down for everybody once a transaction has more than 64
that have written, which a loop of submissions would reach. What the database itself refuses (a deadlock, a
lock time-out, a serialization failure) is raised as the driver's own error, because only who owns the
transaction can repeat it.
"""
