"""Topics with ``cleanup.policy=COMPACTION``: the last message of each key stays (docs/design/compaction.md)."""
