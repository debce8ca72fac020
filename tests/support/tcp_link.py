"""A link between two programs on loopback that can be cut, or be silent in one direction or both."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

TO_TARGET, FROM_TARGET = "to the target", "from the target"


class Link:
    """Passes bytes on from its port to that of a target, until ``close``.

    ``silent`` has the directions in which nothing is passed on, with open connections; nothing is lost.
    """

    def __init__(self, target, port=0):
        self._target = target
        self.silent = set()
        self._pairs = []
        self._ended = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port = self._listening.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._listening.close()
        self.cut()

    def cut(self):
        """Close all connections; new ones are accepted."""
        for ends in self._pairs:
            for one in ends:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while not self._ended.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=5)
            except OSError:
                client.close()
                continue
            self._pairs.append((client, server))
            for source, sink, way in ((client, server, TO_TARGET), (server, client, FROM_TARGET)):
                threading.Thread(target=self._pass_on, args=(source, sink, way), daemon=True).start()

    def _pass_on(self, source, sink, way):
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                if not select.select([source], [], [], 0.05)[0] or way in self.silent:
                    self._ended.wait(0.02 if way in self.silent else 0)
                    continue
                data = source.recv(65536)
                if not data:
                    break
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
