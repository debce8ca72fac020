"""Compare the log of a slave with that of its master before bytes are sent.

The HA port carries one number, so a slave that has other bytes below it, for example because its master lost the end of
its log, would get the rest of a log that it does not have (H3). The broker port of the slave gives more: request 33
returns the record at a position. A record carries its position, queue offset, store time and checksum, so if the last
record that the slave has is the same, the logs are the same up to there.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tailrace.errors import RemotingCommandError, RemotingError
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.formats.requests.message_headers import ViewMessageRequestHeader
from tailrace.kernels.shared import constants as C
from tailrace.remoting.client import RemotingClient
from tailrace.segments import MappedFileQueue
from tailrace.store.walk.scan import LogEnd, scan_files

__all__ = ["ALSO_RELEASED", "Compared", "Verdict", "ask_record", "compare", "differs_at", "last_record_before"]

ASK_MS: Final = 3000
ALSO_RELEASED: Final = "alsoReleased"
"""Field of request 33 by which a broker asks for a record even if its topic was deleted or has released it.

RocketMQ ignores it: its records stay readable by their position until their file is deleted.
"""


async def ask_record(client: RemotingClient, address: str, phy_offset: int, timeout_ms: int) -> bytes:
    """Return the record that the broker at ``address`` has at a position, none if no record starts there: request 33.

    Raises RemotingError or OSError if the broker does not say whether there is one.
    """
    answer = await client.invoke(
        address, RequestCode.VIEW_MESSAGE_BY_ID,
        {**ViewMessageRequestHeader(offset=phy_offset).to_ext(), ALSO_RELEASED: "true"}, timeout_ms=timeout_ms)
    if answer.code == ResponseCode.SUCCESS:
        return bytes(answer.body)
    if answer.code == ResponseCode.SYSTEM_ERROR and "by the offset" in (answer.remark or ""):
        return b""
    raise RemotingCommandError(answer.code, answer.remark or "", address)


class Verdict(enum.Enum):
    """Result of a comparison."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_COMPARED = "not compared"


class Compared(NamedTuple):
    """A verdict, and the position and the reason that it is about."""

    verdict: Verdict
    phy_offset: int
    """Start of the record that was compared, -1 without one."""
    reason: str


def last_record_before(queue: MappedFileQueue, until: int) -> tuple[int, bytes] | None:
    """Return position and bytes of the last whole record that ends at ``until`` or before; None without one.

    Reads from the start of a file, so it may take a second; call it in a thread. Raises OSError.
    """
    for file in reversed(queue.files):
        start, last = file.file_from_offset, None
        for chunk in scan_files(
            [file], start, min(start + file.wrote_position, until), C.CHECK_PHY_OFFSET, LogEnd()
        ):
            if len(chunk.rows):
                last = int(chunk.rows[-1, C.PHY]), int(chunk.rows[-1, C.SIZE])
        if last is not None:
            return last[0], file.read(last[0] - start, last[1], apart=True)
    return None


async def compare(
    queue: MappedFileQueue, until: int, addresses: Sequence[str], client: RemotingClient,
    in_thread: Callable[[Callable[[], tuple[int, bytes] | None]], Awaitable[tuple[int, bytes] | None]],
) -> Compared:
    """Compare the last record before ``until`` with the one that a slave has there.

    ``addresses`` are those of the brokers at its host. Of several, those count whose log ends at ``until``, because a
    slave reports its end when it connects.
    """
    found = await in_thread(lambda: last_record_before(queue, until))
    if found is None:
        return Compared(Verdict.NOT_COMPARED, -1, "there is no whole record")
    if len(addresses) > 1:
        ends = [await _end_of(address, client) for address in addresses]
        addresses = [address for address, end in zip(addresses, ends, strict=True) if end == until]
    if not addresses:
        return Compared(Verdict.NOT_COMPARED, found[0], "the address of its broker is unknown")
    all_found = [await _compare(*found, address, client) for address in addresses]
    if len({one.verdict for one in all_found}) == 1:
        return all_found[0]
    return Compared(
        Verdict.NOT_COMPARED, found[0], "brokers of its host have different logs that end at the same position")


async def differs_at(
    places: Sequence[int], record_at: Callable[[int], bytes | None], addresses: Sequence[str], client: RemotingClient,
    in_thread: Callable[[Callable[[], bytes | None]], Awaitable[bytes | None]],
) -> Compared | None:
    """Compare the records at some places with those of a slave. Return the first difference, or None.

    A slave may have other bytes where its master had damage, although both then have the same records.
    """
    for at in places:
        if (ours := await in_thread(partial(record_at, at))) is None:  # a gap, at which the slave stops
            continue
        found = [await _compare(at, ours, address, client) for address in addresses]
        if found and all(one.verdict is Verdict.DIFFERENT for one in found):
            return found[0]
    return None


async def _end_of(address: str, client: RemotingClient) -> int:
    """Return the end of the log of the broker at ``address``, -1 without an answer."""
    try:
        answer = await client.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, timeout_ms=ASK_MS)
        return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])
    except (RemotingError, OSError, ValueError, KeyError, TypeError):
        return -1


async def _compare(position: int, ours: bytes, address: str, client: RemotingClient) -> Compared:
    """Compare a record with the one that the broker at ``address`` has at its position."""
    try:
        theirs = await ask_record(client, address, position, ASK_MS)
    except RemotingCommandError as error:
        return Compared(Verdict.NOT_COMPARED, position, f"code {error.code}: {error.remark}")
    except (RemotingError, OSError, ValueError) as error:
        return Compared(Verdict.NOT_COMPARED, position, str(error))
    if theirs == ours:
        return Compared(Verdict.SAME, position, "")
    what = f"its record at {position} is another one" if theirs else f"it has no record at {position}"
    return Compared(Verdict.DIFFERENT, position, what)
