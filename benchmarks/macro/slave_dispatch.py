"""Processor time of a slave for a message, with and without the check of bodies that its dispatch makes.

``slave_dispatch.py DIRECTORY`` appends the log of a master to slaves in DIRECTORY, which should be in memory, in pieces
of some messages, with a dispatch after each piece. The forms take turns on the same bytes. Printed are the least
and the median of the rounds, in microseconds of a message.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from tailrace import Message, MessageStore, StoreConfig
from tailrace.config import BrokerRole
from tailrace.kernels.shared import constants as C
from tailrace.node.store_opening import StoreParts
from tailrace.store.walk.scan import checks_of

COUNT = 20_000
BODY = bytes(range(256)) * 4
ROUNDS = 5
SEGMENT = 128 << 20
PARTS = StoreParts(services=False)
FORMS = {
    checks_of(StoreConfig()): "bodies checked",
    C.CHECK_PHY_OFFSET | C.CHECK_PROP_CRC: "bodies not checked",
    C.CHECK_PHY_OFFSET: "as on a master"}
"""By the checks that dispatch makes, what they are."""


def log_of_a_master(path: str) -> tuple[bytes, int]:
    """Return the bytes of a log with ``COUNT`` messages of 1 KiB in 8 topics, and the length of a record."""
    with MessageStore.open(path, config=StoreConfig(mapped_file_size_commit_log=SEGMENT), parts=PARTS) as store:
        for number in range(COUNT):
            store.put(Message(topic=f"Topic{number % 8}", body=BODY, tags="Tag", keys=(f"key{number:06}",)),
                      queue_id=number // 8 % 4)
        log = store.inner.commit_log
        return bytes(log.read(0, log.max_offset)), log.max_offset // COUNT


def round_of(path: str, log: bytes, piece: int, check: int) -> tuple[float, float]:
    """Return the processor time of the appends and of the dispatch for a message, microseconds."""
    appended = dispatched = 0
    config = StoreConfig(mapped_file_size_commit_log=SEGMENT, broker_role=BrokerRole.SLAVE)
    with MessageStore.open(path, config=config, parts=PARTS) as slave:
        store = slave.inner
        store.reput._check, store.reput._short = check, store.reput._dispatcher.new_short_batch(check)
        for at in range(0, len(log), piece):
            data = memoryview(bytearray(log[at : at + piece]))
            began = time.process_time_ns()
            store.append_raw(at, data)
            between = time.process_time_ns()
            while store.reput.step():
                pass
            appended += between - began
            dispatched += time.process_time_ns() - between
        assert store.reput.behind_bytes() < piece
    return appended / COUNT / 1000, dispatched / COUNT / 1000


def main(directory: str) -> None:
    """Print a line for each length of a piece and each form."""
    print(next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ""))
    with tempfile.TemporaryDirectory(dir=directory) as path:
        log, size = log_of_a_master(f"{path}/master")
    for messages in (1, 16, 1000):
        found: dict[int, list[tuple[float, float]]] = {form: [] for form in FORMS}
        for _ in range(ROUNDS):
            for check, times in found.items():
                with tempfile.TemporaryDirectory(dir=directory) as path:
                    times.append(round_of(f"{path}/slave", log, messages * size, check))
        for check, times in found.items():
            appends, dispatches = zip(*times, strict=True)
            both = [sum(one) for one in times]
            print(f"{messages} messages a piece, {FORMS[check]}: "
                  f"append {statistics.median(appends):.2f}, dispatch {min(dispatches):.2f} least "
                  f"{statistics.median(dispatches):.2f} median, both {statistics.median(both):.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
