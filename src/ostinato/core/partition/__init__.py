"""The partition stepper: an event and the facts about it go in, a batch of effects comes out; all pure.

One step has two halves, with the transaction between them::

    facts ─► step (pure) ─► Effects ─► Store.commit ─► CommitReport ─► settle (pure) ─► messages, wake-ups

The first half changes nothing. The second applies to the partition's memory only what the database has
taken: a row that no longer matched, or whose partition was lost, never happened. A file for each event:

* ``assign``: due work was placed on workers, or cannot be
* ``ended``: attempts have ended, been lost, or come back unstarted
* ``fire``: triggers are due
* ``switch``: a new version of a definition comes into force
* ``request``: somebody asks for a cancel, a replay, a pause, a deletion
* ``expire``: waiting instances that can no longer start in time

The memory of an owner is its running attempts; everything that waits is in the database alone.
"""
