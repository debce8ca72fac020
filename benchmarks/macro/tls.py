"""Processor time of a send over TLS and without, of `tailrace serve` and, with --reference, of a Java broker.

    python benchmarks/macro/tls.py [--messages 20000] [--size 1024] [--reference tests/interop/reference/rocketmq]

One connection keeps 64 requests under way. The figure is the processor time of the server for a message, which
other programs on the machine change much less than its speed. The certificate has an EC key (P-256), the cipher
is what both sides choose, as a rule TLS_AES_256_GCM_SHA384. A line of JSON for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tailrace.client import Producer, TlsOptions
from tailrace.errors import RemotingError
from tailrace.formats.remoting import RemotingCommand, decode_frame, encode

TICKS = os.sysconf("SC_CLK_TCK")
UNDER_WAY = 64
START_S = 90


def processor_s(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def certificate(where: Path) -> tuple[Path, Path]:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", where / "key.pem", "-out", where / "cert.pem"], check=True, capture_output=True)
    return where / "cert.pem", where / "key.pem"


@contextlib.contextmanager
def tailrace(where: Path, cert: Path, key: Path) -> Iterator[tuple[int, str]]:
    conf = where / "serve.conf"
    conf.write_text(f"tls.server.certPath={cert}\ntls.server.keyPath={key}\n")
    command: list[str | Path] = [
        sys.executable, "-m", "tailrace.cli", "serve", where / "store", "--listen", "127.0.0.1:0",
        "--namesrv-listen", "none", "--config", conf, "--log-level", "error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().split()[1].partition("=")[2]
        finally:
            process.terminate()


@contextlib.contextmanager
def java(reference: Path, where: Path, cert: Path, key: Path) -> Iterator[tuple[int, str]]:
    port = random.SystemRandom().randrange(12_000, 32_000)
    conf = where / "broker.conf"
    conf.write_text(
        f"brokerIP1=127.0.0.1\nlistenPort={port}\nnamesrvAddr=127.0.0.1:9\nstorePathRootDir={where}/java\n"
        f"storePathCommitLog={where}/java/commitlog\nmappedFileSizeCommitLog=268435456\n"
        "transactionMetricFlushInterval=100\n"  # it spins until such an interval is over, see peer.py
        "waitTimeMillsInSendQueue=60000\nosPageCacheBusyTimeOutMills=60000\n")
    env = {**os.environ, "ROCKETMQ_JAVA_OPTS": f"-Xms1g -Xmx1g -Dtls.test.mode.enable=false "
           f"-Dtls.server.certPath={cert} -Dtls.server.keyPath={key}"}
    with subprocess.Popen([reference, "broker", conf], env=env, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + START_S
            while time.monotonic() < until:
                with socket.socket() as probe:
                    if not probe.connect_ex(("127.0.0.1", port)):
                        break
                time.sleep(0.2)
            yield process.pid, f"127.0.0.1:{port}"
        finally:
            process.kill()


async def send(address: str, frames: list[bytes], context: ssl.SSLContext | None) -> None:
    """Send all frames over one connection and wait for their answers; all must be SUCCESS."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context, limit=1 << 22)
    rest, answered, sent = b"", 0, 0
    while answered < len(frames):
        upto = min(len(frames), answered + UNDER_WAY)
        if upto > sent:
            writer.write(b"".join(frames[sent:upto]))
            sent = upto
        rest += await reader.read(1 << 20)
        at = 0
        while True:
            command, at = decode_frame(rest, at, len(rest))
            if command is None:
                break
            if command.code:
                raise SystemExit(f"answer {command.code}: {command.remark}")
            answered += 1
        rest = rest[at:]
    writer.close()


def frames_of(count: int, size: int) -> list[bytes]:
    ext = {"a": "bench", "b": "bench", "c": "TBW102", "d": "4", "f": "0", "g": "0", "h": "0", "i": "", "j": "0",
           "k": "false"}
    body = os.urandom(size)
    made = []
    for n in range(count):
        ext["e"], ext["g"] = str(n % 4), str(time.time_ns() // 1_000_000)
        made.append(encode(RemotingCommand(310, dict(ext), body, opaque=n, version=493)))
    return made


def make_topic(address: str) -> None:
    until = time.monotonic() + START_S
    with Producer(broker=address, tls=TlsOptions(auth_server=False)) as producer:
        while True:
            try:
                producer.create_topic("bench", 4)
                return
            except RemotingError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reference")
    options = parser.parse_args()
    encrypted = ssl.create_default_context()
    encrypted.check_hostname, encrypted.verify_mode = False, ssl.CERT_NONE
    frames = frames_of(options.messages, options.size)
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        cert, key = certificate(where)
        servers: dict[str, Callable[[], AbstractContextManager[tuple[int, str]]]] = {
            "tailrace": lambda: tailrace(where, cert, key)}
        if options.reference:
            servers["reference"] = lambda: java(Path(options.reference).absolute(), where, cert, key)
        for name, serve in servers.items():
            with serve() as (pid, address):
                make_topic(address)
                for context in (None, encrypted):  # warm
                    asyncio.run(send(address, frames, context))
                least = {"plain": float("inf"), "tls": float("inf")}
                for _ in range(options.rounds):
                    for kind, context in (("plain", None), ("tls", encrypted)):
                        before, began = processor_s(pid), time.monotonic()
                        asyncio.run(send(address, frames, context))
                        used = (processor_s(pid) - before) / options.messages * 1e6
                        least[kind] = min(least[kind], used)
                        print(json.dumps({
                            "server": name, "kind": kind, "size": options.size, "messages": options.messages,
                            "processor_us_per_message": round(used, 2),
                            "messages_per_s": round(options.messages / (time.monotonic() - began))}), flush=True)
                print(json.dumps({
                    "server": name, "size": options.size, "plain_us": round(least["plain"], 2),
                    "tls_us": round(least["tls"], 2), "plain_by_tls": round(least["plain"] / least["tls"], 3)}),
                    flush=True)


if __name__ == "__main__":
    main()
