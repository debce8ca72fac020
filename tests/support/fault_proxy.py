"""A proxy on loopback before a server of HTTP that injects faults, by their rate and a seed.

The kinds: ``503``; ``reset`` before the request is passed on; ``lost``: the server gets the request, and the answer is
thrown away; ``cut``: the request ends in its body; ``short``: the answer ends early; ``hang``: no answer. Each
connection is used for one request. Signatures stay valid, because ``Host`` is passed on.
"""

import contextlib
import random
import socket
import struct
import threading

FAULTS = ("503", "reset", "lost", "cut", "short", "hang")
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultProxy:
    def __init__(self, target, *, rate=0.0, kinds=FAULTS, seed=1, hang_s=30.0):
        self._target, self._kinds, self._hang_s = target, kinds, hang_s
        self.rate, self.hits = rate, 0
        self.next = []  # faults for the next requests, None for no fault; before those by chance
        self._random = random.Random(seed)
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self):
        while not self._ended.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _fault(self):
        if self.next:
            found = self.next.pop(0)
        else:
            found = self._random.choice(self._kinds) if self._random.random() < self.rate else None
        self.hits += found is not None
        return found

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request:
                more = client.recv(65536)
                if not more:
                    return
                request += more
            head, _, body = request.partition(b"\r\n\r\n")
            fault = self._fault()
            if fault == "reset":
                _reset(client)
                return
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            length = next((int(one.split(b":")[1]) for one in lines if one.lower().startswith(b"content-length:")), 0)
            while len(body) < length and fault != "cut":
                body += client.recv(1 << 20)
            if fault == "503":
                client.sendall(b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (
                    len(_SLOW_DOWN), _SLOW_DOWN))
                return
            if fault == "hang":
                self._ended.wait(self._hang_s)
                return
            with socket.create_connection(self._target) as server:
                passed_on = body[: length // 2] if fault == "cut" else body
                server.sendall(b"\r\n".join([*lines, b"Connection: close", b"", passed_on]))
                if fault == "cut":
                    _reset(client)
                    return
                answer = b""
                while more := server.recv(1 << 20):
                    answer += more
            if fault == "lost":
                _reset(client)
                return
            client.sendall(answer[: len(answer) // 2] if fault == "short" else answer)


def _reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
