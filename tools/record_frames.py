"""Record the frames of sends and pulls that a client program sends, for `lane_frames.py` and tests.

Starts ``tailrace serve`` with the topic LaneTopic and a tap before it, runs a command, and writes the first LIMIT
frames of its sends (codes 10, 310 and 320) and its pulls (11 and 361), as they are, one after the other. Ends the
command when they are there, or after TIMEOUT seconds. In the command ``{namesrv}`` is the address of the name server.
``{broker}`` is that of the tap. ``--fill N`` stores N messages first, so that a consumer has something to pull.

    python tools/record_frames.py tests/fixtures/frames/java-producer.bin -- \\
        tests/interop/reference/rocketmq bench Producer -n {namesrv} -t LaneTopic -w 4 -s 64 -k true -l 8
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from tailrace import Message, MessageStore

CODES = {10: "sends", 310: "sends", 320: "sends", 11: "pulls", 361: "pulls"}
HOST, TAP_HOST = "127.0.0.1", "127.0.0.2"
"""Where the broker listens, and the address that clients get from the name server; both have the same port."""
TOPIC, QUEUES = "LaneTopic", 8


class Frames:
    """The frames of all connections that are kept; ``done`` is set when there are ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self.kept: list[bytes] = []
        self.done = asyncio.Event()
        self._limit = limit

    def add(self, frame: bytes) -> None:
        """Keep a frame if it is a send or a pull."""
        size = int.from_bytes(frame[5:8], "big")
        header = frame[8 : 8 + size]
        code = int.from_bytes(header[:2], "big") if frame[4] else code_of(header)
        if code in CODES and len(self.kept) < self._limit:
            self.kept.append(frame)
        if len(self.kept) == self._limit:
            self.done.set()


def code_of(header: bytes) -> int:
    """Return the code of a JSON header, -1 without one."""
    digits = header.partition(b'"code":')[2].split(b",")[0].rstrip(b"}")
    return int(digits) if digits.isdigit() else -1


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter, frames: Frames | None) -> None:
    """Copy bytes until their end, and keep their frames."""
    held = bytearray()
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
            if frames is None:
                continue
            held += data
            while len(held) >= 4 and len(held) >= (end := 4 + int.from_bytes(held[:4], "big")):
                frames.add(bytes(held[:end]))
                del held[:end]
    target.close()


async def record(store: Path, command: list[str], frames: Frames, timeout_s: float) -> None:
    """Run the server, the tap and the command until the frames are there."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tailrace.cli", "serve", str(store), "--listen", f"{HOST}:0", "--namesrv-listen",
        f"{HOST}:0", "--set", f"brokerIP1={TAP_HOST}", "--log-level", "error", stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        ready = dict(part.split("=", 1) for part in (await server.stdout.readline()).decode().split()[1:])
        host, port = ready["broker"].rsplit(":", 1)

        async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            answers, requests = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pass_on(reader, requests, frames), pass_on(answers, writer, None))

        async with await asyncio.start_server(tap, TAP_HOST, int(port)):
            client = await asyncio.create_subprocess_exec(
                *(part.format(namesrv=ready["namesrv"], broker=f"{TAP_HOST}:{port}") for part in command),
                start_new_session=True, stdout=sys.stderr)
            waits = [asyncio.create_task(frames.done.wait()), asyncio.create_task(client.wait())]
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGKILL)
            await client.wait()
            waits[0].cancel()
    finally:
        server.terminate()
        await server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("command", nargs="+")
    parser.add_argument("--limit", type=int, default=60, help="frames that are kept")
    parser.add_argument("--timeout", type=float, default=60, help="seconds")
    parser.add_argument("--fill", type=int, default=0, help="messages that are stored first")
    arguments = parser.parse_args()

    async def run() -> list[bytes]:
        frames = Frames(arguments.limit)
        with tempfile.TemporaryDirectory(prefix="record-") as scratch:
            store = Path(scratch, "store")
            with MessageStore.open(store) as opened:
                opened.create_topic(TOPIC, QUEUES)
                for number in range(arguments.fill):
                    opened.put(Message(topic=TOPIC, body=b"%d" % number, tags="t"), queue_id=number % QUEUES)
            await record(store, arguments.command, frames, arguments.timeout)
        return frames.kept

    kept = asyncio.run(run())
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_bytes(b"".join(kept))
    print(f"{arguments.output}: {len(kept)} frames, {arguments.output.stat().st_size} bytes")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
