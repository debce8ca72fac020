"""Retention: which CommitLog files are deleted, and the services that delete them.

Rules, pure functions over facts:
    rules         a verdict for each file: deleted, or why it stays
    topic_rules   how long topics keep their messages
    disk_state    how full the disks are, and what follows

Protocol of those that still need old messages (timers, groups, the archive):
    pins          a pin keeps every file from a position of the log onwards

Actions:
    disk_check, clean_commit_log, clean_consume_queue, trash   the services
    free_request                                               a request to free a number of bytes
    forced_deletions                                           a list of files deleted before their time
    min_offsets                                                state file of logical minimum offsets

``node.retention.services`` composes the services of one store.
"""
