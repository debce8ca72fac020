"""Attacks on a running server, a minute each at most: what they cost in memory, and what its other clients notice.

Each attack has a server of its own (`tailrace serve` with users, --http and, except for the attacks on TLS, --grpc) and
a process of its own. Victims work from another address: a held connection and ever new ones that send, a gRPC
producer and ever new ones, and a reader of /ready. The table has the memory of the server (MiB: before, the highest,
what is kept RELEASE seconds after the attack), the times of a victim's sends (ms: median, 99 %, longest; before and
during) and who was refused. An attack fails if a victim's median exceeds 5 ms (on a busy machine three times the median
before, and longer by as much as the event loop waited for a processor, `run_delay.py`), if a victim is refused, if
more than 20 MiB are kept or if a password is found; then the tool ends with 1. An attack of several rounds may keep
20 MiB in its last one: the heaps of the C library grow once to what a flood of calls takes.
LOG=1 also prints the warnings of the server after a failed attack.

    python tools/hostile_runs.py                        # all
    ONLY=long_names,silent_streams python tools/hostile_runs.py
    SCALE=0.1 SEED=7 python tools/hostile_runs.py       # a tenth of the requests, streams and seconds
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "tests" / "support")]

import hostile_http  # noqa: E402
import hostile_remoting  # noqa: E402
from hostile_wire import (  # noqa: E402
    TOPIC,
    USERS,
    Connection,
    Target,
    make_users,
    send_fields,
)
from run_delay import Threads  # noqa: E402

MEDIAN_MS, KEPT_MIB, READY_S = 5.0, 20.0, 4.0
HELD = {"send", "gRPC send"}
"""Victims whose medians are bounded: each has a connection that it keeps."""
BEFORE_S, RELEASE_S = 4.0, 15.0
BODY_BYTES = 2_000


@dataclasses.dataclass(frozen=True)
class Attack:
    """One row of the table. ``grpc`` and ``tls`` are listeners that the server has."""

    name: str
    module: str
    who: str
    count: int
    seconds: float
    grpc: bool = True
    tls: bool = False
    descriptors: int = 0
    topics: int = 0
    body: int = BODY_BYTES
    """Bytes of a message of a victim."""
    settings: tuple = ()
    rounds: int = 1


ATTACKS = (
    Attack("long_names", "remoting", "no user", 700, 25),
    Attack("short_names", "remoting", "no user", 0, 8),
    Attack("long_field_names", "remoting", "no user", 400, 25),
    Attack("long_topics", "remoting", "user", 500, 25),
    Attack("producer_groups", "remoting", "user with nothing", 60, 5),
    Attack("incomplete_frames", "remoting", "no user", 100, 10),
    Attack("wrong_signatures", "remoting", "no user", 0, 10),
    Attack("pipelined_floods", "remoting", "user with nothing", 20, 10),
    Attack("guesses", "remoting", "no user", 1_000, 20),
    Attack("sql_bombs", "remoting", "user", 300, 15, settings=("enablePropertyFilter=true",)),
    Attack("zlib_bombs", "remoting", "user", 10, 15),
    Attack("half_handshakes", "remoting", "no user", 1_500, 12, grpc=False, tls=True),
    Attack("full_handshakes", "remoting", "no user", 0, 10, grpc=False, tls=True),
    Attack("idle_connections", "grpc", "no user", 4_200, 15, descriptors=4_096, body=20_000,
           settings=("mappedFileSizeCommitLog=1048576",)),
    Attack("silent_streams", "grpc", "no user", 12_500, 12, rounds=3),
    Attack("many_clients", "grpc", "user", 10_500, 30),
    Attack("calls_without_a_user", "grpc", "no user", 48, 10),
    Attack("cancelled_calls", "grpc", "user", 48, 10),
    Attack("many_sends", "grpc", "user", 400, 10),
    Attack("long_polls", "grpc", "user", 3_000, 15),
    Attack("scrapers", "http", "no user", 40, 15, topics=1_500),
    Attack("slow_requests", "http", "no user", 200, 10),
    Attack("console_guesses", "http", "no user", 1_000, 20),
)


class Server:
    """`tailrace serve` for one attack."""

    def __init__(self, directory, attack):
        self._directory, self._attack = directory, attack
        password = directory / "password"
        password.write_text(USERS["root"] + "\n")
        password.chmod(0o600)
        settings = ["autoCreateSubscriptionGroup=true", "flushDiskType=ASYNC_FLUSH", *attack.settings]
        if attack.tls:
            settings += self._certificate()
        (directory / "conf").write_text("\n".join(settings) + "\n")
        command = [
            sys.executable, "-m", "tailrace.cli", "serve", directory / "store", "--listen", "127.0.0.1:0",
            "--namesrv-listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--config", directory / "conf",
            "--user", "root", "--password-file", password, *(("--grpc", "127.0.0.1:0") if attack.grpc else ())]
        self._log = (directory / "log").open("w")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, preexec_fn=self._limit)
        words = dict(word.split("=", 1) for word in self.process.stdout.readline().split() if "=" in word)
        if "broker" not in words:
            sys.exit(f"no server: {self.log()}")
        self.broker, self.namesrv = _address(words["broker"]), _address(words["namesrv"])
        self.grpc = _address(words["grpc"]) if attack.grpc else None
        self.http = _address(re.search(r"http=(\S+:\d+)", self.log())[1])

    def _certificate(self):
        from certificates import Ca

        certificate, key = Ca(self._directory).make("broker")
        Path(key).chmod(0o600)
        return [f"tls.server.certPath={certificate}", f"tls.server.keyPath={key}", "tls.server.mode=permissive"]

    def _limit(self):
        if self._attack.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._attack.descriptors,) * 2)

    def log(self):
        return (self._directory / "log").read_text(errors="replace")

    def mib(self):
        """Memory that the process has for itself; 0 after its end."""
        with contextlib.suppress(OSError):
            return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())[1]) / 1024
        return 0.0

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self._log.close()


def _address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


class Victim(threading.Thread):
    """Does one thing repeatedly: keeps the time of each success and the reason of each refusal."""

    def __init__(self, name, work, pause_s):
        super().__init__(daemon=True)
        self.name, self._work, self._pause_s, self._going = name, work, pause_s, True
        self._done, self._refused, self._lock = [], [], threading.Lock()
        self.start()

    def run(self):
        while self._going:
            began = time.perf_counter()
            try:
                reason = self._work()
            except (OSError, ValueError, StopIteration) as error:
                reason = f"{type(error).__name__} {error}"
            with self._lock:
                if reason:
                    self._refused.append(reason[:120])
                else:
                    self._done.append(1000 * (time.perf_counter() - began))
            time.sleep(self._pause_s)

    def take(self):
        """Return the times and the refusals since the last call."""
        with self._lock:
            taken = sorted(self._done), self._refused
            self._done, self._refused = [], []
        return taken

    def end(self):
        self._going = False


class _Sender:
    """Sends over one connection, and opens another one if that is closed."""

    def __init__(self, address, body, *, anew=False):
        self._address, self._body, self._anew, self._connection = address, body, anew, None

    def __call__(self):
        try:
            if self._connection is None:
                self._connection = Connection(self._address, "victim", timeout=8)
            header, _ = self._connection.ask(310, send_fields("secret"), self._body)
        except OSError:
            self._connection = None
            raise
        if self._anew:
            self._connection.close()
            self._connection = None
        return "" if header["code"] == 0 else f"code {header['code']} {header.get('remark')}"


def _new_grpc(address, seed):
    from hostile_grpc import GrpcVictim

    numbers = iter(range(1 << 30))

    def work():
        one = GrpcVictim(address, f"new-{seed}-{next(numbers)}")
        try:
            return one.start() or one.send()
        finally:
            one.close()

    return work


def _ready(address):
    def work():
        with urllib.request.urlopen("http://{}:{}/ready".format(*address), timeout=READY_S) as answer:
            return "" if answer.status == 200 else f"status {answer.status}"
    return work


def victims_of(server, seed, body):
    """Start the clients that should not notice anything."""
    started = [
        Victim("send", _Sender(server.broker, body), 0.01),
        Victim("new connection", _Sender(server.broker, body, anew=True), 0.25),
        Victim("/ready", _ready(server.http), 0.5)]
    if server.grpc:
        from hostile_grpc import GrpcVictim

        held = GrpcVictim(server.grpc, f"held-{seed}")
        reason = held.start()
        if reason:
            raise RuntimeError(f"the gRPC victim cannot start: {reason}")
        started += [Victim("gRPC send", held.send, 0.02), Victim("new gRPC client", _new_grpc(server.grpc, seed), 1.0)]
    return started


def _at(times, part):
    return times[min(len(times) - 1, int(len(times) * part))] if times else math.inf


def _shown(times):
    return "/".join(f"{_at(times, part):.1f}" for part in (0.5, 0.99, 1.0)) if times else "none"


def make_topics(server, count):
    """Many topics with a message each, and groups that have consumed them, for what lists them."""
    root = Connection(server.broker, "root", timeout=60)
    topics = [{"topicName": f"topic{n:05}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for n in range(count)]
    for first in range(0, count, 500):
        body = json.dumps({"topicConfigList": topics[first : first + 500]}).encode()
        header, _ = root.ask(18, {}, body)
        if header["code"]:
            root.ask(17, {**TOPIC, "topic": "x"})
            raise RuntimeError(f"topics: {header}")
    for n in range(count):
        name = f"topic{n:05}"
        root.ask(310, send_fields(name), b"x")
        root.ask(15, {"consumerGroup": f"g{n % 240:03}", "topic": name, "queueId": 0, "commitOffset": 1})
    root.close()


def run_attack(attack, directory, seed, scale):
    """Return the row of an attack: its figures and the reasons why it fails."""
    server, watchers = Server(directory, attack), []
    try:
        make_users(server.broker)
        if attack.topics:
            make_topics(server, max(1, int(attack.topics * scale)))
        watchers = victims_of(server, seed, bytes(attack.body))
        time.sleep(1.0)
        for one in watchers:
            one.take()
        loop = Threads(server.process.pid)
        turns = [loop.loop()]
        time.sleep(BEFORE_S * max(scale, 0.25))
        before = {one.name: one.take() for one in watchers}
        turns.append(loop.loop())
        mib = [server.mib()]
        for number in range(1, attack.rounds):
            _attacked(attack, _target(attack, server, directory, seed + 1000 * number, scale), server)
            time.sleep(RELEASE_S * max(scale, 0.25))
            mib = [server.mib()]
        done, highest = _attacked(attack, _target(attack, server, directory, seed, scale), server)
        during = {one.name: one.take() for one in watchers}
        turns.append(loop.loop())
        time.sleep(RELEASE_S * max(scale, 0.25))
        mib += [highest, server.mib()]
        after = {one.name: one.take() for one in watchers}
        if server.process.poll() is not None:
            done["server ended with"] = server.process.returncode
    finally:
        for one in watchers:
            one.end()
        server.stop()
    return {"attack": attack, "log": server.log(), "mib": mib, "done": done,
            "turns": turns, "before": before, "during": during, "after": after}


def _target(attack, server, directory, seed, scale):
    return Target(server.broker, server.namesrv, server.http, server.grpc, attack.seconds * max(scale, 0.25),
                  max(1, int(attack.count * scale)), seed, str(directory))


def _attacked(attack, target, server):
    """Run the attack in a process of its own. Return what it did, and the highest memory of the server."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--attack", attack.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(json.dumps(dataclasses.asdict(target)))
    process.stdin.close()
    highest, until = 0.0, time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        highest = max(highest, server.mib())
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    said = process.stdout.read()
    process.stdout.close()
    process.wait()
    return (json.loads(said) if said.strip() else {"the attack itself ended with": process.returncode}), highest


def _median_limit(row, name):
    """Return the limit of a victim's median, in ms, on a machine where the event loop waited for processors."""
    start, before, end = row["turns"]
    usual, during = (before - start).slower, (end - before).slower
    return max(MEDIAN_MS * during, 3 * _at(row["before"][name][0], 0.5) * max(1.0, during / usual))


def faults_of(row):
    """Return why an attack fails: each of the limits that it broke."""
    faults = []
    for name, (times, refused) in row["during"].items():
        if refused:
            faults.append(f"{name} refused {len(refused)} of {len(refused) + len(times)}: {refused[:1]}")
        elif not times:
            faults.append(f"{name} asked for nothing: the attack was too short to say anything")
        limit = READY_S * 1000 if name == "/ready" else _median_limit(row, name) if name in HELD else math.inf
        if times and _at(times, 0.5) > limit:
            faults.append(f"{name} median {_at(times, 0.5):.1f} ms, more than {limit:.1f}")
    for name, (_, refused) in row["after"].items():
        if refused:
            faults.append(f"{name} refused after the attack {len(refused)}: {refused[:1]}")
    kept = row["mib"][2] - row["mib"][0]
    if kept > KEPT_MIB:
        faults.append(f"{kept:.0f} MiB kept")
    faults += [f"{name} {row['done'][name]}" for name in ("found", "server ended with", "the attack itself ended with")
               if row["done"].get(name)]
    return faults


def show(row):
    """Print a row, and what the limits say of it."""
    attack, faults = row["attack"], faults_of(row)
    grpc = [_shown(row[when]["gRPC send"][0]) if attack.grpc else "-" for when in ("before", "during")]
    print(f"{attack.name:22} {attack.who:18} {'/'.join(f'{mib:.0f}' for mib in row['mib']):>14} "
          f"{row['mib'][2] - row['mib'][0]:6.0f} "
          f"{_shown(row['before']['send'][0]):>15} {_shown(row['during']['send'][0]):>17} {grpc[0]:>15} {grpc[1]:>17}  "
          f"{'FAILS' if faults else 'holds'}", flush=True)
    print(f"{'':22} {', '.join(f'{name}: {count}' for name, count in row['done'].items())}", flush=True)
    for fault in faults:
        print(f"{'':22} - {fault}", flush=True)
    if faults and os.environ.get("LOG") == "1":
        lines = row["log"].splitlines()
        first = next((n for n, line in enumerate(lines) if " ERROR " in line), len(lines))
        print("\n".join(line[:300] for line in [
            *(one for one in lines if " WARNING " in one)][:20] + lines[first : first + 40]), flush=True)
    return faults


def run(attacks, seed, scale):
    """Run the attacks. Return the names of those that fail."""
    print(f"SEED={seed} SCALE={scale}; limits: median {MEDIAN_MS} ms, none refused, {KEPT_MIB:.0f} MiB kept")
    print(f"{'attack':22} {'who':18} {'MiB b/high/a':>14} {'kept':>6} {'send ms before':>15} {'during':>17} "
          f"{'gRPC ms before':>15} {'during':>17}")
    failed = []
    for attack in attacks:
        with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
            if show(run_attack(attack, Path(directory), seed, scale)):
                failed.append(attack.name)
    print(f"{len(attacks)} attacks, {len(failed)} failed" + (f": {', '.join(failed)}" if failed else ""))
    return failed


def attack_as_told(name):
    """The process of an attack: the target comes as JSON, and what was done is printed as JSON."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    told = json.load(sys.stdin)
    target = Target(**{key: tuple(value) if isinstance(value, list) else value for key, value in told.items()})
    [module] = [one.module for one in ATTACKS if one.name == name]
    if module == "grpc":
        import hostile_grpc as attacks
    else:
        attacks = {"http": hostile_http, "remoting": hostile_remoting}[module]
    print(json.dumps(getattr(attacks, name)(target)))


def main(attack=None):
    if attack is not None:
        attack_as_told(attack)
        return 0
    only = {name for name in os.environ.get("ONLY", "").split(",") if name}
    unknown = only - {one.name for one in ATTACKS}
    if unknown:
        sys.exit(f"unknown attacks: {', '.join(sorted(unknown))}")
    chosen = [one for one in ATTACKS if not only or one.name in only]
    return 1 if run(chosen, int(os.environ.get("SEED", "1")), float(os.environ.get("SCALE", "1"))) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    sys.exit(main(**vars(parser.parse_args())))
