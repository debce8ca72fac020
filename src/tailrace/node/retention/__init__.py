"""Retention of an open store: the services of ``store.retention`` with topics, and with what pins files.

    services         composes the services of one open store
    topics           topics with rules of their own, and purged topics
    group_pins       pins messages that consumer groups have not consumed
    archive_pins     pins files that the archive does not have
    timer_rescue     pins pending messages, and writes them again if their file must be deleted
    wheel_positions  positions of the messages of pending timers
"""
