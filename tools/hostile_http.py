"""Hostile clients of the HTTP port: see hostile_runs.py. Each attack returns what it did, by name."""

import base64
import collections
import contextlib
import threading
import time

from hostile_remoting import _in_threads, _is_open
from hostile_wire import ATTACKER, USERS, connect


def scrapers(target):
    """Clients without a user that read /metrics without a pause."""
    done, until, lock = collections.Counter(), target.until(), threading.Lock()

    def scrape():
        while time.monotonic() < until:
            try:
                with connect(target.http, max(0.5, until - time.monotonic()), ATTACKER) as one:
                    one.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                    size, status = 0, b""
                    while data := one.recv(1 << 18):
                        status, size = status or data[:12], size + len(data)
                kind = f"{status[9:12].decode()}, {size >> 20} MiB"
            except OSError as error:
                kind = type(error).__name__
                time.sleep(0.01)
            with lock:
                done[kind] += 1

    _in_threads(scrape, target.count)
    return dict(done)


def slow_requests(target):
    """Connections that send a part of a request and nothing more."""
    made = []
    for _ in range(target.count):
        with contextlib.suppress(OSError):
            one = connect(target.http, 2, ATTACKER)
            one.sendall(b"GET /ready HTT")
            made.append(one)
    target.hold()
    open_ = sum(map(_is_open, made))
    for one in made:
        one.close()
    return {"connections": len(made), "open at the end": open_}


def console_guesses(target):
    """A thousand wrong passwords of the super user at the console, 24 at a time, then the right one."""
    done, until, lock = collections.Counter(), target.until(), threading.Lock()
    numbers = iter(range(target.count))

    def guess(password):
        kind = "no answer"
        with contextlib.suppress(OSError), connect(target.http, 2, ATTACKER) as one:
            user = base64.b64encode(f"root:{password}".encode()).decode()
            one.sendall(
                f"GET /console/ HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic {user}\r\n\r\n".encode())
            one.settimeout(0.06)
            kind = one.recv(12)[9:12].decode() or "closed"
        with lock:
            done[kind] += 1
        return kind == "200"

    def work():
        while time.monotonic() < until:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            guess(f"guess-{target.seed}-{number}")

    _in_threads(work, 24)
    if not sum(done.values()) < target.count:
        done["found"] = int(any(guess(USERS["root"]) for _ in range(3)))
    return dict(done)
