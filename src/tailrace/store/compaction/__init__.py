"""Topics with ``cleanup.policy=COMPACTION``: the last message of each key stays.

docs/contributing/design/compaction.md describes the passes and the files.
"""
