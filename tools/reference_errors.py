"""What to do about an error, for docs/reference/errors.md. A class, or a code of an answer, that is not here fails.

A text ``=NAME`` means: named in the row of NAME.
"""

ERRORS = {
    "StoreError": "-",
    "ConfigError": "Correct the settings that `problems` names.",
    "StoreStateError": "-",
    "StoreClosedError": "Open the store again. Open it in the child process after a fork.",
    "StoreLockedError": "Use the broker that has the directory open, or stop it. To read beside it, open the store "
                        "with `read_only=True`.",
    "NotAStoreError": "Check the path. A newer format needs a newer Tailrace.",
    "StoreNotWritableError": "Remove the cause that `reason` names, then open the store again.",
    "CorruptionError": "Run `tailrace verify STORE`, and see [findings](verify-findings.md).",
    "BadMagicError": "=CorruptionError",
    "ChecksumMismatchError": "=CorruptionError",
    "ImpossibleLengthError": "=CorruptionError",
    "UnsupportedVersionError": "Update Tailrace.",
    "UnknownTopicError": "Correct the name, or create the topic.",
    "OddFileError": "Move away the file that `path` names, or replace it by the right file.",
    "ReplicationError": "Do what the event of the slave says.",
    "RawAppendError": "Let only the replication of a slave append; it compares the logs first.",
    "FatalStorageError": "End the process. Check the disk, then open the store. Recovery keeps all durable messages.",
    "LockLostError": "End the process. Find the program that deleted or replaced the lock file.",
    "MissingPackageError": "Install the extra that the message names.",
    "TailraceNotInstalledError": "Do what the message says.",
    "TransientError": "Try again later.",
    "DiskFullError": "[Free disk space](../how-to/operate/disk-space.md), then try again.",
    "TimerFlowControlError": "Choose another delivery time, or raise `timerCongestNumEachSlot`.",
    "FlushDiskTimeoutError": "The message may be lost at a power failure. Send it again if duplicates are harmless. "
                             "Check the disk.",
    "MessageIllegalError": "Change the message. See [limits](limits.md).",
    "FilterExpressionError": "Correct the [expression](../how-to/programs/filter.md).",
    "DataLossError": "Continue at `first`, or read older messages from an [archive](../how-to/data/archive.md).",
    "RemotingError": "-",
    "RemotingConnectError": "Check address, firewall and `brokerIP1`. With TLS see "
                            "[TLS](../how-to/operate/tls.md).",
    "RemotingTimeoutError": "The broker may have stored the message. If you send it again, it may be stored twice.",
    "RemotingClosedError": "=RemotingTimeoutError",
    "DeliveryTimeoutError": "The text names the cause.",
    "RequestTimeoutError": "Check that a consumer runs and calls `reply`.",
    "RemotingFrameError": "Check that the port is that of a broker or name server, and whether it needs TLS.",
    "RemotingCommandError": "See [response codes](#response-codes).",
    "RefusalError": "=RemotingCommandError",
}
EXITS = {
    "0": ("Done.", ""),
    "1": ("Refused or failed, or `verify` has findings.", "Read stderr, or [findings](verify-findings.md)."),
    "2": ("Wrong arguments.", "`tailrace COMMAND --help`"),
    "3": ("A package is not installed, or Python runs with `-O`.", "Install the package that stderr names."),
    "129, 130, 143": ("A signal ended the command: SIGHUP, SIGINT or SIGTERM.", "Repeat the command."),
    "78": ("`serve`: a setting was refused.", "Correct the setting. Until then each start fails, so do not restart."),
}
CODE_LINKS = {
    "MESSAGE_ILLEGAL": "[limits](limits.md)",
    "NO_PERMISSION": "`tailrace acl test`; [users](../how-to/operate/users.md)",
    "SUBSCRIPTION_PARSE_FAILED": "[filters](../how-to/programs/filter.md)",
}
"""Links after what `tailrace.response_codes` says."""
