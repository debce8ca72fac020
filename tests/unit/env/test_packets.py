"""Connections that the kernel does not open, by the network of the client."""

from __future__ import annotations

import contextlib
import fcntl
import select
import socket
import subprocess
import sys

import pytest

from tailrace.env.descriptors import listeners_of_port
from tailrace.env.packets import NETWORKS_MAX, drop_from, drop_nothing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the filter is one of Linux")
ANSWER_S = 0.2
"""A connection on this machine is open much sooner."""
TAKE_LOCK = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


@pytest.fixture
def listening():
    with contextlib.ExitStack() as stack:
        def listen(address):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            try:
                made = socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::")
            except OSError:
                pytest.skip(f"this machine has no address {address}")
            port = stack.enter_context(made).getsockname()[1]
            [found] = listeners_of_port(port)
            return found, port
        yield listen


def opens(port, address, to=None):
    """Return whether a client at an address gets a connection."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as made:
        made.bind((address, 0))
        made.setblocking(False)
        made.connect_ex((to or address, port))
        return bool(select.select([], [made], [], ANSWER_S)[1])


def test_connections_of_an_address_are_not_opened_and_others_are(listening):
    found, port = listening("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) as before:
        drop_from(found, port, ["10.0.0.1", "127.0.0.2", "2001:db8::"])
        assert not opens(port, "127.0.0.2", "127.0.0.1")
        assert opens(port, "127.0.0.1")
        before.sendall(b"x")
        before.shutdown(socket.SHUT_WR)
        assert not before.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), "what is open stays"
        drop_from(found, port, ["127.0.0.3"])
        assert opens(port, "127.0.0.2", "127.0.0.1"), "earlier networks are forgotten"
        assert not opens(port, "127.0.0.3", "127.0.0.1")
        drop_nothing(found, port)
        assert opens(port, "127.0.0.3", "127.0.0.1")


def test_a_network_of_ipv6_and_an_address_of_ipv4_at_the_same_listener(listening):
    found, port = listening("::")
    drop_from(found, port, ["127.0.0.2", "2001:db8::"])
    assert opens(port, "::1")
    assert not opens(port, "127.0.0.2", "127.0.0.1")
    assert opens(port, "127.0.0.1")
    drop_from(found, port, ["2001:db8::", "::", "2001:db8:0:1::"])
    assert not opens(port, "::1")
    assert opens(port, "127.0.0.2", "127.0.0.1")


@pytest.mark.parametrize("networks", [
    [f"10.0.0.{n}" for n in range(NETWORKS_MAX - 1)], [f"2001:db8:0:{n:x}::" for n in range(NETWORKS_MAX - 1)]])
def test_the_kernel_takes_the_most_networks(listening, networks):
    found, port = listening("127.0.0.1")
    drop_from(found, port, [*networks, "127.0.0.2"])
    assert not opens(port, "127.0.0.2", "127.0.0.1")
    assert opens(port, "127.0.0.1")


def test_locks_of_files_stay_when_sockets_are_looked_for(listening, tmp_path):
    """The end of a copy of a file's descriptor ends the locks of the process on it: the store was free for others."""
    with (tmp_path / "lock").open("w") as locked:
        fcntl.lockf(locked, fcntl.LOCK_EX)
        found, port = listening("127.0.0.1")
        drop_from(found._replace(descriptor=locked.fileno()), port, ["127.0.0.2"])
        tried = subprocess.run(
            [sys.executable, "-c", TAKE_LOCK, locked.name], capture_output=True, text=True, check=False)
        assert "BlockingIOError" in tried.stderr


def test_another_socket_with_the_descriptor_is_left_alone(listening):
    found, port = listening("127.0.0.1")
    drop_from(found._replace(inode=found.inode + 1), port, ["127.0.0.2"])
    drop_from(found, port + 1, ["127.0.0.2"])
    drop_from(found._replace(descriptor=1 << 20), port, ["127.0.0.2"])
    assert opens(port, "127.0.0.2", "127.0.0.1")
