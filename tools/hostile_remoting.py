"""Hostile clients of the broker's own port: see hostile_runs.py. Each attack returns what it did, by name."""

import collections
import contextlib
import json
import random
import socket
import ssl
import threading
import time
import zlib

from hostile_wire import (
    ATTACKER,
    USERS,
    Connection,
    connect,
    frame,
    pull_fields,
    send_fields,
    signed,
)

LONG = 900_000
"""Characters of a name; a header may have 1 MiB."""


def _repeat(target, make, user=None):
    """Send ``count`` requests, with a new connection whenever the server closes one. Return the answers by code."""
    done, connection, until = collections.Counter(), None, target.until()
    for number in range(target.count):
        if time.monotonic() > until:
            break
        code, fields, body = make(number)
        try:
            if connection is None:
                connection = Connection(target.broker, user, source=ATTACKER)
            done[f"code {connection.ask(code, fields, body)[0]['code']}"] += 1
        except OSError:
            done["closed"] += 1
            connection = None
    return dict(done)


def long_names(target):
    """An unauthenticated client names ever new users with very long names."""
    return _repeat(target, lambda n: (
        105, {"AccessKey": f"{n:08}" + "A" * 990_000, "Signature": "x", "topic": "secret"}, b""))


def long_field_names(target):
    """An unauthenticated client names an existing user, and sends fields with very long names."""
    return _repeat(target, lambda n: (
        105, {f"{n:08}" + "f" * LONG: "x", "AccessKey": "victim", "Signature": "x", "topic": "secret"}, b""))


def long_topics(target):
    """A user names ever new, very long topics that start with a prefix of the user's permissions."""
    return _repeat(target, lambda n: (310, send_fields(f"own{n:08}" + "t" * LONG), b"x"), "mallory")


def producer_groups(target):
    """A user without permissions keeps connections that name 1,000 producer groups each."""
    made, done = [], collections.Counter()
    for number in range(target.count):
        try:
            connection = Connection(target.broker, "guest", source=ATTACKER)
            beat = {"clientID": f"c{number}", "consumerDataSet": [], "producerDataSet": [
                {"groupName": f"p{target.seed}-{number}-{n}-{'x' * 60}"} for n in range(1000)]}
            done[f"code {connection.ask(34, {}, json.dumps(beat).encode())[0]['code']}"] += 1
            made.append(connection)
        except OSError:
            done["closed"] += 1
    target.hold()
    for connection in made:
        connection.close()
    return {**done, "connections": len(made)}


def incomplete_frames(target):
    """Unauthenticated clients send a frame of 5 MiB without its end, and begin again when they are closed."""
    size = 5 << 20
    head = frame(105, {"topic": "x"})[:-1]
    data = (size - 4).to_bytes(4, "big") + head[4:] + bytes(size - 4096 - len(head))
    done, until, lock = collections.Counter(), target.until(), threading.Lock()

    def send():
        while time.monotonic() < until:
            try:
                with connect(target.broker, 2, ATTACKER) as one:
                    sent = 0
                    while sent < len(data) and time.monotonic() < until:
                        with contextlib.suppress(TimeoutError):
                            sent += one.send(data[sent : sent + (1 << 18)])
                    with lock:
                        done["incomplete frames"] += 1
                    one.settimeout(max(0.1, until - time.monotonic()))
                    one.recv(1)
            except OSError:
                time.sleep(0.05)
            with lock:
                done["ended"] += 1

    _in_threads(send, target.count)
    return dict(done)


def wrong_signatures(target):
    """One connection at a time sends requests of an existing user with a wrong signature, 200 in a write."""
    done, until, connection, turn = collections.Counter(), target.until(), None, 0
    while time.monotonic() < until:
        turn += 1
        try:
            if connection is None:
                connection = Connection(target.broker, source=ATTACKER)
            codes = connection.ask_together(105, [
                {"AccessKey": "victim", "Signature": f"x{turn}-{n}", "topic": "secret"} for n in range(200)])
            done["answers"] += len(codes)
        except OSError:
            done["closed"] += 1
            connection = None
            time.sleep(0.002)
    return dict(done)


def guesses(target):
    """A thousand wrong passwords of one user and more until a third of the time is over, then the right one."""
    done, until, connection = collections.Counter(), target.until(), None
    least, number, is_last = until - target.seconds * 2 / 3, 0, False
    while not is_last and time.monotonic() < until:
        number += 1
        is_last = number > target.count and time.monotonic() > least
        password = USERS["victim"] if is_last else f"guess-{target.seed}-{number}"
        try:
            if connection is None:
                connection = Connection(target.broker, "victim", source=ATTACKER)
            header, _ = connection.ask(310, send_fields("secret"), b"x", password=password)
            done["answers"] += 1
            done["found"] += header["code"] == 0
        except OSError:
            done["closed"] += 1
            connection = None
            time.sleep(0.002)
    return dict(done)


def half_handshakes(target):
    """Connections that send the first bytes of a TLS handshake and nothing more."""
    made = []
    hello = bytes.fromhex("16030100c8010000c40303")
    for _ in range(target.count):
        with contextlib.suppress(OSError):
            one = connect(target.broker, 2, ATTACKER)
            one.sendall(hello)
            made.append(one)
    target.hold()
    open_ = sum(map(_is_open, made))
    for one in made:
        one.close()
    return {"connections": len(made), "open at the end": open_}


def _is_open(one):
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def full_handshakes(target):
    """Four threads complete one TLS handshake after another."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    done, until, lock = collections.Counter(), target.until(), threading.Lock()

    def shake():
        while time.monotonic() < until:
            try:
                with connect(target.broker, 5, ATTACKER) as plain, context.wrap_socket(plain):
                    pass
                kind = "handshakes"
            except OSError:
                kind = "refused"
            with lock:
                done[kind] += 1

    _in_threads(shake, 4)
    return dict(done)


def sql_bombs(target):
    """A user pulls 3,000 messages with new SQL92 expressions: long, nested, and with many comparisons."""
    user = Connection(target.broker, "mallory", source=ATTACKER)
    for number in range(3_000):
        user.ask(310, send_fields("own", f"a\x01{number}\x02text\x01{'x' * 200}\x02"), b"x")
    chance, done, until = random.Random(target.seed), collections.Counter(), target.until()
    turn = 0
    while time.monotonic() < until and turn < target.count:
        turn += 1
        number = chance.randrange(1 << 30)
        expression = (
            f"a > {number} OR " + " OR ".join(f"a = {number + n}" for n in range(500)),
            "(" * 3_000 + f"a = {number}" + ")" * 3_000,
            "NOT " * 1_900 + f"a = {number}",
            " AND ".join(f"text CONTAINS '{'x' * 20}{number % 97}{n}'" for n in range(190)),
            "a IN (" + ",".join(f"'{number + n}'" for n in range(700)) + ")")[turn % 5][:8_000]
        try:
            header, _ = user.ask(11, pull_fields("mine", "own", expression, "SQL92"))
            done[f"code {header['code']}"] += 1
        except OSError:
            done["closed"] += 1
            user = Connection(target.broker, "mallory", source=ATTACKER)
    return dict(done)


def zlib_bombs(target):
    """Bodies of 1 MB that decompress to 1 GiB: stored and pulled, shown by the console, and as a registration."""
    made = zlib.compressobj(9)
    bomb = b"".join(made.compress(bytes(1 << 20)) for _ in range(1 << 10)) + made.flush()
    done, until = collections.Counter(), target.until()
    user = Connection(target.broker, "mallory", source=ATTACKER)
    registration = {"brokerName": "x", "brokerAddr": "127.0.0.66:1", "clusterName": "own", "brokerId": 0,
                    "haServerAddr": "", "compressed": "true"}
    for _ in range(target.count):
        if time.monotonic() > until:
            break
        for address, code, fields in (
            (target.broker, 310, send_fields("own", sys_flag=1)), (target.broker, 11, pull_fields("mine", "own")),
            (target.namesrv, 103, registration), (target.broker, 34, {}),
        ):
            try:
                if address is target.broker:
                    done[f"{code}: code {user.ask(code, fields, bomb if code != 11 else b'')[0]['code']}"] += 1
                    continue
                for name in ("mallory", None):
                    other = Connection(address, name, source=ATTACKER)
                    done[f"{code}: code {other.ask(code, fields, bomb)[0]['code']}"] += 1
                    other.close()
            except OSError:
                done[f"{code}: closed"] += 1
                user = Connection(target.broker, "mallory", source=ATTACKER)
    return dict(done)


def short_names(target):
    """An unauthenticated client names ever new users, 200 in a write: what the log and the counters keep."""
    done, until, connection, number = collections.Counter(), target.until(), None, 0
    while time.monotonic() < until:
        number += 200
        try:
            if connection is None:
                connection = Connection(target.broker, source=ATTACKER)
            done["answers"] += len(connection.ask_together(105, [
                {"AccessKey": f"u{target.seed}-{number + n}", "Signature": "x", "topic": f"t{number + n}"}
                for n in range(200)]))
        except OSError:
            done["closed"] += 1
            connection = None
            time.sleep(0.002)
    return dict(done)


def pipelined_floods(target):
    """Users that may send nothing do so without a pause, from 20 connections, and never read the answers."""
    done, until, lock = collections.Counter(), target.until(), threading.Lock()
    requests = b"".join(frame(310, signed(send_fields("secret"), b"x", "guest"), b"x", n) for n in range(100))

    def flood():
        while time.monotonic() < until:
            try:
                with connect(target.broker, 1, ATTACKER) as one:
                    while time.monotonic() < until:
                        one.sendall(requests)
                        with lock:
                            done["requests"] += 100
            except OSError:
                with lock:
                    done["closed"] += 1
                time.sleep(0.01)

    _in_threads(flood, target.count)
    return dict(done)


def _in_threads(work, count):
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


socket.setdefaulttimeout(20)
