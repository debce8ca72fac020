"""Lines of timers and of delay levels."""

from __future__ import annotations

from typing import Final

from tailrace.events.declaration import event

TIMER_RECOVERY: Final = event(
    "info", "timer recovery", "mode reason units cut_at queue_offset read_time_ms",
    "Delivery continues at `read_time_ms`, enqueueing at `queue_offset`.")
TIMERS_ARE_REBUILT_FROM_THE_COMMITLOG: Final = event(
    "info", "timers are rebuilt from the CommitLog", "reason",
    "The timer files are missing, as after a restore, or cannot be used. No timer is lost.")
TIMER_LOG_IS_CUT_AT_ITS_FIRST_BAD_UNIT: Final = event(
    "warning", "timer log is cut at its first bad unit", "pos",
    "Later timers are enqueued again from the log.", do="Nothing.")
TIMER_LOG_FILE_IS_DELIVERED_AND_REMOVED: Final = event(
    "info", "timer log file is delivered and removed", "file",
    "All its timers are delivered.")
REMOVE_TIMER_LOG_FILE: Final = event(
    "info", "remove timer log file", "file",
    "The timers are rebuilt.")
TIMER_LOG_APPEND_FAILED: Final = event(
    "error", "timer log append failed, enqueue waits", "queue_offset cause",
    "New timers wait in their queue; it is retried.", do="[Make room](../how-to/operate/disk-space.md).")
TIMER_QUEUE_OFFSET_IS_BELOW_THE_LEAST_ONE: Final = event(
    "warning", "timer queue offset is below the least one", "offset min_offset",
    "Retention deleted timers before they were enqueued.",
    do="[Make room](../how-to/operate/disk-space.md), or keep messages longer.")
TIMER_MESSAGE_UNREADABLE: Final = event(
    "error", "timer message unreadable", "phy_offset size cause",
    "It was deleted or is damaged, so it is not delivered.", do="Run `tailrace verify STORE`.")
READ_OF_A_WAITING_MESSAGE_FAILED: Final = event(
    "warning", "a waiting message cannot be read now", "phy_offset size reads cause",
    "Only this message waits; it is read again within 5 s.", do="Check the disk if this repeats.")
WAITING_MESSAGE_IS_LEFT_OUT: Final = event(
    "error", "a waiting message cannot be read, it is left out", "phy_offset size cause",
    "The disk returned errors for a minute; quarantine lists the message.",
    do="Replace the disk; restore the file from a copy.")
LIST_OF_A_TIMER_SLOT_CANNOT_BE_READ: Final = event(
    "error", "list of a timer slot cannot be read now", "time_ms pos cause",
    "The timers of that second wait; retried within 5 s.", do="Check the disk; a restart rebuilds the timers.")
LIST_OF_A_TIMER_SLOT_IS_BROKEN: Final = event(
    "error", "list of a timer slot is broken", "time_ms pos units",
    "Timers found before the break are delivered.", do="Run `tailrace verify STORE`.")
STORE_TIMES_ARE_AHEAD: Final = event(
    "warning", "store times are ahead of the wall clock", "ahead_ms last_store_time",
    "The clock was set back; messages get the last store time until the clock reaches it.",
    do="See [a clock that was ahead](../how-to/operate/runbook.md#a-clock-that-was-ahead).")
CANNOT_KEEP_TIMES_OF_THE_WALL_CLOCK: Final = event(
    "warning", "cannot keep times of the wall clock", "file cause",
    "After a restart look-ups by time may return earlier messages.", do="Check the disk if this repeats.")
WALL_CLOCK_STEPPED_BACK: Final = event(
    "warning", "wall clock stepped back", "by_ms",
    "Delivery checks the log for duplicates.", do="Check the time service.")
TIMER_PUT_BACK_FAILED: Final = event(
    "warning", "timer put-back failed, it is tried again", "phy_offset status cause",
    "A due timer could not be delivered. It stays due.", do="Check the disk if this repeats.")
MESSAGE_PARKED: Final = event(
    "error", "message parked", "phy_offset topic messages reason",
    "Their topic never takes them; they are in `%DLQ%TAILRACE_TIMER`.",
    do="Read `tailrace timers STORE`, and send them again.")
PROPERTIES_LEFT_OUT_OF_A_COPY: Final = event(
    "warning", "properties left out of a copy", "topic message copy left_out",
    "`TAILRACE_LEFT_OUT` in the retry or dead letter names them.", do="Find the message with `tailrace query`.")
QUEUE_OF_WAITING_MESSAGES_IS_GONE: Final = event(
    "warning", "queue of waiting messages is gone", "topic queue_id to messages",
    "They are delivered to another queue of the topic.", do="Nothing.")
FAR_TIMERS_COST_A_RECORD_IN_EACH_ROUND: Final = event(
    "warning", "far timers cost a record in each round", "max_delay_s rounds window_s",
    "The longest delay writes a message `rounds` times.", do="Lower `timerMaxDelaySec` if you can.")
TIMER_PROGRESS: Final = event(
    "info", "timer progress", "read_behind_ms offset_behind to_look_at waiting put_back congestion",
    "How late delivery is, and how many timers wait.")
DELAY_OFFSET_CORRECTED: Final = event(
    "warning", "delay offset corrected", "level offset to min_offset max_offset",
    "The delay level had no such offset.", do="Nothing.")
DELAY_OFFSET_WITHOUT_A_QUEUE: Final = event(
    "warning", "delay offset without a queue", "level offset to",
    "The level has no messages and starts at 0.", do="Nothing.")
DELIVER_TIMES_ARE_TOO_FAR_AHEAD: Final = event(
    "warning", "deliver times are too far ahead", "level offset",
    "The clock stepped back; messages wait for their delay from now.", do="Check the time service.")
DELAYED_MESSAGE_HELD_UP: Final = event(
    "warning", "delayed message held up, it is tried again", "level offset phy_offset cause",
    "Later messages of the level wait.", do="Check the disk if this repeats.")
DELAYED_MESSAGE_UNREADABLE: Final = event(
    "error", "delayed message unreadable", "phy_offset size cause",
    "It was deleted or is damaged, so it is not delivered.", do="Run `tailrace verify STORE`.")
