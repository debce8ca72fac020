"""Addresses as text, and which address of this machine is advertised."""

import asyncio
import socket

import pytest

from tailrace.broker.core.listeners import Listeners
from tailrace.env.interfaces import interface_addresses
from tailrace.remoting import addresses
from tailrace.remoting.addresses import address_text, host_of, is_loopback, own_address, packed_host
from tailrace.remoting.client import split_address


@pytest.mark.parametrize(("host", "text"), [
    ("127.0.0.1", "127.0.0.1:9"), ("::1", "[::1]:9"), ("fd00::2", "[fd00::2]:9"), ("name", "name:9")])
def test_an_address_is_read_back(host, text):
    assert address_text(host, 9) == text
    assert split_address(text) == (host, 9)


@pytest.mark.parametrize(("text", "host"), [
    ("fd00::2", "fd00::2"), ("[fd00::2]", "fd00::2"), (" [FD00:0::2] ", "fd00::2"), ("10.0.0.1", "10.0.0.1"),
    ("broker.example", "broker.example"), ("", "")])
def test_a_host_is_taken_with_and_without_brackets(text, host):
    assert host_of(text) == host


@pytest.fixture
def machine(monkeypatch):
    """A machine with a name, a default route and interfaces as a test says; None fails."""
    def made(name=None, route=None, interfaces=()):
        def answer(value):
            def call(*_):
                if value is None:
                    raise OSError("none")
                return value
            return call

        monkeypatch.setattr(addresses, "_address_of_name", answer(name))
        monkeypatch.setattr(addresses, "_address_of_default_route", answer(route))
        monkeypatch.setattr(addresses, "interface_addresses", answer(list(interfaces)))
    return made


@pytest.mark.parametrize(("name", "route", "interfaces", "found"), [
    ("10.0.0.5", "10.0.0.6", [], "10.0.0.5"),
    ("127.0.1.1", "10.0.0.6", [], "10.0.0.6"),
    (None, "10.0.0.6", [], "10.0.0.6"),
    ("127.0.1.1", None, ["127.0.0.1", "169.254.1.1", "10.0.0.7", "10.0.0.8"], "10.0.0.7"),
    ("127.0.1.1", "0.0.0.0", ["127.0.0.1"], "127.0.0.1"),
    (None, None, [], "127.0.0.1"),
])
def test_an_address_that_others_reach_comes_first(machine, name, route, interfaces, found):
    machine(name, route, interfaces)
    assert own_address(4) == found


def test_the_version_of_the_listening_address_counts(machine):
    machine("10.0.0.5", "fe80::1%eth0", ["::1", "fe80::1", "fd00::2"])
    assert (own_address(4), own_address(6)) == ("10.0.0.5", "fd00::2")


def listening(host, broker_ip=""):
    async def run():
        made = Listeners(broker_ip)
        await made.start((host, 0), (host, 0))
        found = made.broker_address, made.namesrv_address, made.listen_address, made.store_host[:-4]
        await made.stop()
        return found

    return asyncio.run(run())


def test_listening_on_all_addresses_with_a_host_name_of_loopback(machine, caplog):
    machine("127.0.1.1", "10.0.0.6")
    broker, namesrv, _, packed = listening("0.0.0.0")
    assert broker.startswith("10.0.0.6:")
    assert namesrv.startswith("10.0.0.6:")
    assert packed == bytes([10, 0, 0, 6])
    assert "brokerIP1" not in caplog.text
    machine("127.0.1.1")
    assert listening("0.0.0.0")[0].startswith("127.0.0.1:")
    assert "the advertised address is reached from this machine only, set brokerIP1" in caplog.text


def test_brackets_are_everywhere_with_ipv6(machine):
    machine(None, "fd00::2")
    broker, namesrv, listens, packed = listening("::")
    assert broker.startswith("[fd00::2]:")
    assert namesrv.startswith("[fd00::2]:")
    assert listens.startswith("[::]:")
    assert packed == socket.inet_pton(socket.AF_INET6, "fd00::2")
    assert all(text.startswith("[::1]:") for text in listening("::1")[:3])


@pytest.mark.parametrize("given", ["fd00::2", "[fd00::2]"])
def test_the_configured_address_may_be_of_ipv6(given, caplog):
    broker, _, _, packed = listening("127.0.0.1", given)
    assert broker.startswith("[fd00::2]:")
    assert len(packed) == 16
    assert listening("0.0.0.0", "127.0.0.1")[0].startswith("127.0.0.1:")
    assert caplog.text.count("set brokerIP1") == 1


def test_a_name_with_addresses_of_ipv6_only_can_be_advertised(monkeypatch):
    def no_ipv4(name):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(addresses.socket, "gethostbyname", no_ipv4)
    monkeypatch.setattr(addresses.socket, "getaddrinfo", lambda *_: [(socket.AF_INET6, 1, 6, "", ("fd00::3", 0, 0, 0))])
    assert packed_host("six.example") == socket.inet_pton(socket.AF_INET6, "fd00::3")
    assert not is_loopback("six.example")

    def unknown(*_):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(addresses.socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match="brokerIP1=nowhere cannot be looked up"):
        packed_host("nowhere")


def test_interfaces_of_this_machine_are_read():
    assert "127.0.0.1" in interface_addresses(4)
    assert all(":" in one for one in interface_addresses(6))
