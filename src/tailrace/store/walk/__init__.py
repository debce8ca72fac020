"""Read the records of the CommitLog in order, and find damaged bytes and the end of the log.

Modules, in the order to read them:
  scan      finds records one after the other, up to the first bytes that are not a valid record
  log_walk  has the rules for what follows such a gap, the abstract ``Walk``, and the walk of one thread
  parallel  does the same walk with several threads
  stitched  does the same walk over segments that were scanned elsewhere (in Spark tasks)

Only ``Walk`` decides where the log ends and what is damage. Recovery, verification and readers without
the lock use it.
"""
