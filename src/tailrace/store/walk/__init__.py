"""Records of the CommitLog in the order of the log, and where bytes are no record.

To read in this order: ``scan`` finds records one after the other as far as they are whole; ``log_walk``
has the rules for what follows a gap, the abstract ``Walk`` and the walk of one thread; ``parallel`` is the
same walk by several threads, ``stitched`` over segments that were scanned elsewhere. Where the log ends and
what is damage is decided in ``Walk`` alone. Recovery, verification and readers without the lock use it.
"""
