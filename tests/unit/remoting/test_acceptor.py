"""TLS on a server: modes, certificates, bad handshakes, limits, reload. The client is ours or a plain socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import ssl
import sys
from pathlib import Path

import pytest
from patience import until_async

pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca
from tls_echo import ECHO, WAIT_S, echo, run, serving

from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, MissingPackageError, RemotingConnectError, RemotingError
from tailrace.remoting.acceptor import (
    CLIENT_CERTIFICATE,
    CLOSED_BY_CLIENT,
    HANDSHAKE_ERROR,
    NO_CERTIFICATE,
    NOT_ENCRYPTED,
    REFUSED_BY_CLIENT,
    TIMEOUT,
    TLS_DISABLED,
    TOO_MANY,
)
from tailrace.remoting.client import RemotingClient
from tailrace.remoting.tls import TlsOptions, server_context
from tailrace.remoting.tls_reload import TlsReload, acceptor_certificate
from tailrace.tls_settings import TlsConfig


@pytest.fixture(scope="module")
def ca(tmp_path_factory):
    return Ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def server_files(ca):
    return ca.make("server")


def settings(files, **more):
    return TlsConfig(cert_path=files[0], key_path=files[1], **more)


def place(address):
    host, _, port = address.partition(":")
    return host, int(port)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_frames_of_every_size_pass_through_tls(mode, ca, server_files):
    async def test():
        async with serving(settings(server_files, mode=mode)) as (acceptor, address, _):
            tls = TlsOptions(trust_cert_path=ca.path)
            client = RemotingClient(tls=tls)
            for size in (0, 1, 16_000, 16_384, 16_385, 100_000, 4 << 20):
                body = random.Random(size).randbytes(size)
                assert await echo(address, body=body, client=client) == body
            many = [echo(address, body=b"%d" % n * 1000, client=client) for n in range(50)]
            assert await asyncio.gather(*many) == [b"%d" % n * 1000 for n in range(50)]
            await client.close()
            assert (acceptor.handshakes, sum(acceptor.failures.values())) == (1, 0)
    run(test)


def test_a_permissive_port_serves_plain_clients_beside_others(ca, server_files):
    async def test():
        async with serving(settings(server_files)) as (_, address, server):
            tls = TlsOptions(trust_cert_path=ca.path)
            assert await asyncio.gather(echo(address), echo(address, tls), echo(address)) == [b"ping"] * 3
            await until_async(lambda: not server.channels)
    run(test)


def test_a_processor_sees_whether_its_connection_is_encrypted(ca, server_files):
    async def test():
        async with serving(settings(server_files)) as (_, address, server):
            server.register(lambda channel, request: request.answer(0, body=b"%d" % channel.is_tls), ECHO)
            assert [await echo(address), await echo(address, TlsOptions(trust_cert_path=ca.path))] == [b"0", b"1"]
    run(test)


@pytest.mark.parametrize(("mode", "certificate", "tls", "reason"), [
    ("enforcing", True, False, NOT_ENCRYPTED), ("disabled", True, True, TLS_DISABLED),
    ("permissive", False, True, NO_CERTIFICATE),
])
def test_the_wrong_kind_of_client_is_closed_with_one_line(mode, certificate, tls, reason, ca, server_files, caplog):
    async def test():
        config = settings(server_files, mode=mode) if certificate else TlsConfig(mode=mode)
        async with serving(config) as (acceptor, address, server):
            for _ in range(3):
                with pytest.raises(RemotingError):
                    await echo(address, TlsOptions(trust_cert_path=ca.path) if tls else None)
            await until_async(lambda: acceptor.failures[reason] == 3)
            assert not server.channels
            assert len(acceptor.limits) == 0
    with caplog.at_level(logging.WARNING, "tailrace.remoting.acceptor"):
        run(test)
    (line,) = [r.getMessage() for r in caplog.records]
    assert f"reason={reason} " in line


@pytest.mark.parametrize(("name", "options", "text"), [
    ("expired", {}, "certificate has expired"), ("elsewhere", {}, "IP address mismatch"),
    ("stranger", {}, "unable to get local issuer certificate"),
])
def test_a_client_does_not_accept_a_certificate_that_is_not_of_its_server(name, options, text, ca, tmp_path):
    files = {
        "expired": lambda: ca.make("expired", expired=True),
        "elsewhere": lambda: ca.make("elsewhere", hosts=("other.example",)),
        "stranger": lambda: Ca(tmp_path, "Other CA").make("stranger"),
    }[name]()

    async def test():
        async with serving(settings(files)) as (acceptor, address, _):
            with pytest.raises(RemotingConnectError, match="certificate of the server is not accepted") as caught:
                await echo(address, TlsOptions(trust_cert_path=ca.path))
            assert text in str(caught.value)
            assert await echo(address, TlsOptions(auth_server=False)) == b"ping"
            assert await echo(address) == b"ping"
            await until_async(lambda: acceptor.failures[REFUSED_BY_CLIENT] + acceptor.failures[CLOSED_BY_CLIENT] == 1)
    run(test)


def test_the_name_may_be_left_unchecked_while_the_ca_is_checked(ca, tmp_path):
    async def test():
        async with serving(settings(ca.make("moved", hosts=("other.example",)))) as (_, address, _):
            assert await echo(address, TlsOptions(trust_cert_path=ca.path, check_server_name=False)) == b"ping"
            other = Ca(tmp_path, "Third CA")
            with pytest.raises(RemotingConnectError):
                await echo(address, TlsOptions(trust_cert_path=other.path, check_server_name=False))
    run(test)


@pytest.mark.parametrize("versions", ["", "TLSv1.2", "TLSv1.3"])
def test_clients_need_a_certificate_of_the_trusted_ca_when_that_is_required(versions, ca, server_files, tmp_path):
    async def test():
        config = settings(
            server_files, need_client_auth="require", auth_client=True, trust_cert_path=ca.path, protocols=versions)
        async with serving(config) as (acceptor, address, server):
            good, bad = ca.make("client"), Ca(tmp_path, "Other CA").make("intruder")
            trusted = {"trust_cert_path": ca.path}
            assert await echo(
                address, TlsOptions(cert_path=good[0], key_path=good[1], **trusted)) == b"ping"
            for options in (trusted, {**trusted, "cert_path": bad[0], "key_path": bad[1]}):
                with pytest.raises(RemotingError):
                    await echo(address, TlsOptions(**options))
            await until_async(lambda: acceptor.failures[CLIENT_CERTIFICATE] == 2)
            await until_async(lambda: not server.channels)
    run(test)


def test_an_optional_certificate_may_be_missing_but_not_be_wrong(ca, server_files, tmp_path):
    async def test():
        config = settings(server_files, need_client_auth="optional", auth_client=True, trust_cert_path=ca.path)
        async with serving(config) as (acceptor, address, _):
            bad = Ca(tmp_path, "Other CA").make("intruder")
            assert await echo(address, TlsOptions(trust_cert_path=ca.path)) == b"ping"
            with pytest.raises(RemotingError):
                await echo(address, TlsOptions(trust_cert_path=ca.path, cert_path=bad[0], key_path=bad[1]))
            await until_async(lambda: acceptor.failures[CLIENT_CERTIFICATE] == 1)
    run(test)


def test_a_client_that_uses_tls_on_a_port_without_it_is_told_so(ca):
    async def test():
        async with serving(TlsConfig(mode="disabled")) as (_, address, _):
            with pytest.raises(RemotingConnectError, match=r"in the TLS handshake|TLS failed"):
                await echo(address, TlsOptions(trust_cert_path=ca.path))
    run(test)


# --- handshakes that never end


def test_a_thousand_half_handshakes_keep_nobody_out_and_are_bounded(ca, server_files):
    async def test():
        async with serving(settings(server_files), handshakes_max=300, handshakes_per_address=200) as (
                acceptor, address, _):
            held = []
            try:
                for n in range(1000):
                    one = socket.socket()
                    one.connect(place(address))
                    one.send(b"\x16\x03\x01\x02\x00\x01")
                    held.append(one)
                    if n % 50 == 0:
                        await asyncio.sleep(0)
                await until_async(lambda: acceptor.incomplete + acceptor.failures[TOO_MANY] == 1000)
                assert acceptor.incomplete == 200
                assert len(acceptor.limits) == 200
                assert await echo(address, TlsOptions(trust_cert_path=ca.path)) == b"ping"
                assert await echo(address) == b"ping"
            finally:
                for one in held:
                    one.close()
            await until_async(lambda: acceptor.incomplete == 0)
            assert not acceptor._incomplete
    run(test)


def test_all_addresses_together_have_a_limit(server_files):
    async def test():
        async with serving(settings(server_files), handshakes_max=3, handshakes_per_address=2) as (
                acceptor, address, _):
            writers = []
            for source in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2"):
                _, writer = await asyncio.open_connection(*place(address), local_addr=(source, 0))
                writer.write(b"\x16")
                writers.append(writer)
                await until_async(lambda: acceptor.incomplete + acceptor.failures[TOO_MANY] == len(writers))
            assert acceptor.incomplete == 3
            assert {host: len(of) for host, of in acceptor._incomplete.items()} == {"127.0.0.1": 1, "127.0.0.2": 2}
            for writer in writers:
                writer.close()
    run(test)


def test_a_handshake_that_takes_too_long_is_closed(server_files):
    async def test():
        async with serving(settings(server_files), handshake_timeout_s=0.1) as (acceptor, address, _):
            reader, writer = await asyncio.open_connection(*place(address))
            writer.write(b"\x16\x03\x01")
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            assert acceptor.failures[TIMEOUT] == 1
            writer.close()
    run(test)


def test_a_stop_closes_half_handshakes_and_silent_connections(server_files):
    async def test():
        async with serving(settings(server_files)) as (acceptor, address, server):
            readers = []
            for first in (b"", b"\x16\x03\x01"):
                reader, writer = await asyncio.open_connection(*place(address))
                writer.write(first)
                readers.append((reader, writer))
            await until_async(lambda: acceptor.incomplete == 1 and len(acceptor.limits) == 2)
            await server.stop(0)
            for reader, writer in readers:
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
                writer.close()
            assert len(acceptor.limits) == 0
    run(test)


# --- bad bytes


def hello():
    """The first message of a client."""
    out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def test_random_damaged_and_cut_handshakes_close_their_connection_and_no_other(ca, server_files, caplog):
    good = hello()
    chance = random.Random(16)
    damaged = [b"\x16" + chance.randbytes(chance.randrange(1, 3000)) for _ in range(40)]
    for _ in range(60):
        one = bytearray(good)
        for _ in range(chance.randrange(1, 8)):
            one[chance.randrange(1, len(one))] = chance.randrange(256)
        damaged.append(bytes(one))
    damaged += [good[:n] for n in range(1, len(good), 23)]
    damaged += [good + chance.randbytes(200), good * 3, b"\x16" * 4000, b"\x16\x03\x03\xff\xff" + bytes(70_000)]

    async def attack(address, data):
        reader, writer = await asyncio.open_connection(*place(address))
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            writer.write_eof()
            await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()

    async def test():
        async with serving(settings(server_files)) as (acceptor, address, server):
            client = RemotingClient(tls=TlsOptions(trust_cert_path=ca.path))
            assert await echo(address, client=client) == b"ping"
            for data in damaged:
                await attack(address, data)
            await until_async(lambda: sum(acceptor.failures.values()) == len(damaged))
            assert acceptor.failures[HANDSHAKE_ERROR] >= 40
            assert acceptor.incomplete == 0
            assert await echo(address, client=client) == b"ping"
            assert len(server.channels) == len(acceptor.limits) == 1
            assert acceptor.handshakes == 1
            await client.close()
    run(test)
    assert not [r for r in caplog.records if r.exc_info]


def test_damage_after_the_handshake_closes_only_its_connection(ca, server_files):
    async def test():
        async with serving(settings(server_files)) as (_, address, server):
            context = ssl.create_default_context(cafile=ca.path)
            reader, writer = await asyncio.open_connection(*place(address), ssl=context, server_hostname="localhost")
            await until_async(lambda: len(server.channels) == 1)
            raw = writer.get_extra_info("socket")
            assert raw.fileno() >= 0
            with socket.socket(fileno=socket.dup(raw.fileno())) as under:
                under.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)
            await until_async(lambda: not server.channels)
            writer.transport.abort()
            assert await echo(address) == b"ping"
    run(test)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_a_client_refuses_servers_of_old_versions_and_compression(version, ca, server_files):
    async def test():
        async with serving(settings(server_files)) as (acceptor, address, server):
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            old.load_cert_chain(*server_files)
            old.minimum_version = old.maximum_version = version
            old.options &= ~ssl.OP_NO_COMPRESSION
            old.set_ciphers("DEFAULT:@SECLEVEL=0")
            acceptor.context = old
            tls = TlsOptions(trust_cert_path=ca.path)
            if version != ssl.TLSVersion.TLSv1_2:
                with pytest.raises(RemotingConnectError, match=r"(?i)version|alert"):
                    await echo(address, tls)
                assert sum(acceptor.failures.values()) == 1
                return
            client = RemotingClient(tls=tls)
            assert await echo(address, client=client) == b"ping"
            (channel,) = server.channels
            assert channel._transport.get_extra_info("ssl_object").compression() is None
            await client.close()
    run(test)


# --- reload


def test_changed_files_are_used_by_new_connections_and_broken_ones_are_not(ca, tmp_path, caplog):
    def put(*files):
        for source, name in zip(files, ("cert.pem", "cert.key"), strict=False):
            (tmp_path / name).write_bytes(Path(source).read_bytes())

    async def shown(address):
        """Return the certificate that the server shows to a new connection."""
        context = ssl.create_default_context(cafile=ca.path)
        _, writer = await asyncio.open_connection(*place(address), ssl=context, server_hostname="localhost")
        found = writer.get_extra_info("ssl_object").getpeercert()["subject"][0][0][1]
        writer.transport.abort()
        return found

    put(*ca.make("first"))
    config = TlsConfig(cert_path=str(tmp_path / "cert.pem"), key_path=str(tmp_path / "cert.key"))

    async def test():
        async with serving(config) as (acceptor, address, server):
            reload = TlsReload(OsFileSystem(), SystemClock(), period_s=0.02)
            reload.add(acceptor_certificate(config, acceptor))
            reload.start()
            client = RemotingClient(tls=TlsOptions(trust_cert_path=ca.path))
            assert await echo(address, client=client) == b"ping"
            (first,) = server.channels
            assert await shown(address) == "first"
            put(ca.make("second")[0])  # with the key of the first
            await until_async(lambda: any("cannot be loaded again" in r.getMessage() for r in caplog.records))
            assert await shown(address) == "first"
            put(*ca.make("third"))
            await until_async(lambda: any("certificate loaded again" in r.getMessage() for r in caplog.records))
            assert await shown(address) == "third"
            assert await echo(address, client=client) == b"ping"
            assert first in server.channels  # the client still has its connection
            await client.close()
            await reload.stop()
    with caplog.at_level(logging.INFO, "tailrace.remoting.tls_reload"):
        run(test)


# --- settings


def test_a_key_with_a_password(ca):
    cert, key = ca.make("locked", password="open sesame")

    async def test():
        async with serving(TlsConfig(cert_path=cert, key_path=key, key_password="open sesame")) as (_, address, _):
            assert await echo(address, TlsOptions(trust_cert_path=ca.path)) == b"ping"
    run(test)
    for password in ("", "close"):
        with pytest.raises(ConfigError, match="is the password of the key wrong or missing"):
            server_context(TlsConfig(cert_path=cert, key_path=key, key_password=password))


def test_the_certificate_of_the_test_mode_encrypts_and_is_not_trusted():
    async def test():
        async with serving(TlsConfig(test_mode=True)) as (_, address, _):
            assert await echo(address, TlsOptions(auth_server=False)) == b"ping"
            with pytest.raises(RemotingConnectError, match="is not accepted"):
                await echo(address, True)
    run(test)


def test_files_that_cannot_be_used_are_named(ca, server_files, tmp_path):
    other = ca.make("other")
    (tmp_path / "junk.pem").write_text("junk")
    junk, missing = str(tmp_path / "junk.pem"), str(tmp_path / "missing.pem")
    for config, text in (
        (TlsConfig(cert_path=missing, key_path=server_files[1]), missing),
        (TlsConfig(cert_path=junk, key_path=server_files[1]), junk),
        (TlsConfig(cert_path=server_files[0], key_path=other[1]), "of another certificate"),
        (settings(server_files, need_client_auth="require", auth_client=True, trust_cert_path=junk), junk),
        (settings(server_files, protocols="TLSv1.1"), "TLSv1.1 is not supported"),
        (settings(server_files, ciphers="TLS_NO_WITH_SUCH"), "OpenSSL"),
        (settings(server_files, ciphers="TLS_AES_128_GCM_SHA256"), "only be used together"),
        (settings(server_files, ciphers="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", protocols="TLSv1.3"), "no suite"),
    ):
        with pytest.raises(ConfigError) as caught:
            server_context(config)
        assert text in str(caught.value)


def test_suites_have_the_names_of_java(ca, server_files):
    suite = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"

    async def test():
        async with serving(settings(server_files, ciphers=suite)) as (_, address, _):
            context = ssl.create_default_context(cafile=ca.path)
            _, writer = await asyncio.open_connection(*place(address), ssl=context, server_hostname="localhost")
            assert writer.get_extra_info("cipher")[:2] == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2")
            writer.transport.abort()
    run(test)


@pytest.mark.parametrize("values", [
    {"mode": "enforcing"}, {"cert_path": "x"}, {"key_path": "x"}, {"mode": "strict"},
    {"need_client_auth": "require"}, {"need_client_auth": "want"},
    {"need_client_auth": "require", "auth_client": True, "test_mode": True},
])
def test_settings_that_cannot_keep_their_promise_are_refused(values):
    with pytest.raises(ConfigError):
        TlsConfig(**values)


def test_passwords_are_not_shown(ca, server_files):
    assert "sesame" not in repr(TlsConfig(key_password="sesame", client_key_password="sesame"))
    assert "sesame" not in repr(TlsOptions(key_password="sesame"))


def test_the_test_mode_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingPackageError, match=r"pip install '\.\[tls\]' in the checkout"):
        server_context(TlsConfig(test_mode=True))
