"""Recovery: repair a directory after any kind of stop.

Modules, in the order to read them:
  passes      the numbered passes
  table       the decisions of the passes, as data
  start       pass 2: where the walk starts; where queues continue after segments were lost; the report
  coverage    whether the queues have a unit for every record
  quarantine  keeps the bytes that are cut off or stepped over
  rebuild_dispatcher  units and entries, where units on disk or damage disagree with the log
  offsets     pass 8: which queues stay, and their offsets

``store.walk`` finds the records.
"""
