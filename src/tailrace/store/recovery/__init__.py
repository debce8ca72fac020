"""From the files of a directory, whatever stopped the last process, to a store that is right.

To read in this order: ``passes`` has the numbered passes; ``table`` what they decide, as data; ``start``
is pass 2, where the walk begins, with ``coverage`` (do the queues tell of every record) and ``lost_ends``
(where queues go on after lost segments); ``quarantine`` keeps what is cut off or stepped over; ``refusal``
finds out first whether a strict mode refuses the log; ``report`` is what an open says about it. Records are
found by ``store.walk``, units and entries are written by ``store.dispatch``, also in a running store.
"""
