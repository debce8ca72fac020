"""Certificates that expire, and lists of revoked ones: warnings, times, and which clients are refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import DAY, Ca
from patience import until_async
from tls_echo import echo, run, serving

from tailrace.env.clock import SystemClock
from tailrace.env.filesystem import OsFileSystem
from tailrace.errors import ConfigError, RemotingError
from tailrace.remoting.acceptor import CLIENT_CERTIFICATE, Acceptor
from tailrace.remoting.limits import ServerLimits
from tailrace.remoting.tls import TlsOptions, server_context
from tailrace.remoting.tls_reload import TlsReload, acceptor_certificate
from tailrace.tls_settings import TlsConfig

SOON, EXPIRED = "certificate expires soon", "certificate has expired"


@pytest.fixture
def ca(tmp_path):
    return Ca(tmp_path)


class Watch:
    """A reload whose clock the test sets, in days from now."""

    def __init__(self, config, caplog):
        self.start = SystemClock().now_ms()
        self._caplog = caplog
        self.day = 0.0
        self.acceptor = Acceptor(ServerLimits())
        self.reload = TlsReload(OsFileSystem(), SimpleNamespace(now_ms=self._now))
        self.reload.add(acceptor_certificate(config, self.acceptor))

    def _now(self):
        return self.start + int(self.day * 86_400_000)

    def warned(self, day=None):
        """Return the lines since the last call, after a look at this day."""
        if day is not None:
            self.day = day
            for _, use in self.reload._changed():  # what the loop does every two seconds
                use()
            self.reload._warn()
        found = [r.getMessage() for r in self._caplog.records if r.getMessage().startswith((SOON, EXPIRED))]
        self._caplog.clear()
        return found


def settings(files, **more):
    return TlsConfig(cert_path=files[0], key_path=files[1], **more)


def test_a_certificate_has_a_warning_each_day_of_its_last_two_weeks(ca, caplog):
    files = ca.make("long", end=dt.datetime.now(dt.UTC) + 90 * DAY)
    watch = Watch(settings(files), caplog)
    assert watch.reload.expires_s()["tls.server.certPath"] == pytest.approx(90 * 86_400, abs=10)
    assert watch.warned() == watch.warned(75.9) == []
    assert watch.warned(76.5) == [f"{SOON} setting=tls.server.certPath file={files[0]} hours=323"]
    assert watch.warned(77.4) == []
    assert len(watch.warned(77.6)) == 1
    assert len(watch.warned(89.9)) == 1
    assert watch.warned(90.1) == [f"{EXPIRED} setting=tls.server.certPath file={files[0]} hours=2"]
    assert watch.warned(90.2) == []
    assert watch.reload.expires_s()["tls.server.certPath"] < 0
    renewed = ca.make("renewed", end=dt.datetime.now(dt.UTC) + 200 * DAY)
    for old, new in zip(files, renewed, strict=True):
        Path(old).write_bytes(Path(new).read_bytes())
    assert watch.warned(90.3) == []
    assert watch.reload.expires_s()["tls.server.certPath"] == pytest.approx(109.7 * 86_400, abs=20)


def test_a_short_life_has_warnings_in_its_last_third_only(ca, caplog):
    watch = Watch(settings(ca.make("short")), caplog)  # a day before now until a day after it
    assert watch.warned() == watch.warned(0.3) == []
    assert len(watch.warned(0.4)) == 1


def test_an_expired_certificate_is_named_at_the_start(ca, caplog):
    files = ca.make("old", expired=True)
    watch = Watch(settings(files), caplog)
    assert watch.warned() == [f"{EXPIRED} setting=tls.server.certPath file={files[0]} hours=48"]


def test_the_first_certificate_of_a_chain_to_expire_counts(ca, tmp_path, caplog):
    cert, key = ca.make("leaf", end=dt.datetime.now(dt.UTC) + 90 * DAY)
    chain = tmp_path / "chain.pem"
    chain.write_bytes(Path(cert).read_bytes() + Path(ca.path).read_bytes())  # the CA has a day left
    watch = Watch(settings((str(chain), key)), caplog)
    assert watch.reload.expires_s()["tls.server.certPath"] == pytest.approx(86_400, abs=10)


def revoking(ca, files, path):
    return settings(
        files, need_client_auth="require", auth_client=True, trust_cert_path=ca.path, crl_path=path, mode="enforcing")


def test_a_list_of_revoked_certificates_expires_as_well(ca, caplog):
    files = ca.make("server", end=dt.datetime.now(dt.UTC) + 90 * DAY)
    path = ca.revoke(next_update=-DAY)
    watch = Watch(revoking(ca, files, path), caplog)
    assert watch.warned() == [f"{EXPIRED} setting=tls.server.crlPath file={path} hours=24"]
    assert watch.reload.expires_s()["tls.server.crlPath"] == pytest.approx(-86_400, abs=10)


@pytest.mark.parametrize("versions", ["TLSv1.2", "TLSv1.3"])
def test_a_revoked_client_is_refused_and_others_are_served(versions, ca, tmp_path):
    gone, stays = ca.make("gone"), ca.make("stays")
    lists = ca.revoke(gone[0])
    config = revoking(ca, ca.make("server"), lists)

    def tls(files):
        return TlsOptions(trust_cert_path=ca.path, cert_path=files[0], key_path=files[1], protocols=versions)

    async def test():
        async with serving(config) as (acceptor, address, _):
            reload = TlsReload(OsFileSystem(), SystemClock(), period_s=0.02)
            reload.add(acceptor_certificate(config, acceptor))
            reload.start()
            assert await echo(address, tls(stays)) == b"ping"
            with pytest.raises(RemotingError):
                await echo(address, tls(gone))
            assert acceptor.failures[CLIENT_CERTIFICATE] == 1
            before = acceptor.context
            ca.revoke(gone[0], stays[0])
            await until_async(lambda: acceptor.context is not before)
            with pytest.raises(RemotingError):
                await echo(address, tls(stays))
            before = acceptor.context
            ca.revoke()
            await until_async(lambda: acceptor.context is not before)
            assert await echo(address, tls(gone)) == b"ping"
            ca.revoke(next_update=-DAY)  # without a list that is up to date every client may be revoked
            before = acceptor.context
            await until_async(lambda: acceptor.context is not before)
            with pytest.raises(RemotingError):
                await echo(address, tls(stays))
            await reload.stop()
    run(test)


def test_a_client_of_a_ca_without_a_list_is_refused(ca, tmp_path):
    other = Ca(tmp_path, "Other CA")
    both = tmp_path / "both.pem"
    both.write_bytes(Path(ca.path).read_bytes() + Path(other.path).read_bytes())
    files = other.make("unlisted")
    config = TlsConfig(**{
        **{name: getattr(revoking(ca, ca.make("server"), ca.revoke()), name) for name in (
            "mode", "cert_path", "key_path", "need_client_auth", "auth_client", "crl_path")},
        "trust_cert_path": str(both)})

    async def test():
        async with serving(config) as (acceptor, address, _):
            with pytest.raises(RemotingError):
                await echo(address, TlsOptions(trust_cert_path=ca.path, cert_path=files[0], key_path=files[1]))
            assert acceptor.failures[CLIENT_CERTIFICATE] == 1
    run(test)


def test_files_of_lists_that_cannot_be_used_are_named(ca, tmp_path):
    files = ca.make("server")
    mixed, text = tmp_path / "mixed.pem", tmp_path / "text.pem"
    mixed.write_bytes(Path(ca.revoke()).read_bytes() + Path(files[0]).read_bytes())
    text.write_text("no list")
    for path, words in (
        (str(tmp_path / "missing"), "No such file"), (ca.path, "no list of revoked"), (str(text), "crlPath"),
        (str(mixed), "would be trusted"),
    ):
        with pytest.raises(ConfigError, match=r"tls\.server\.crlPath") as caught:
            server_context(revoking(ca, files, path))
        assert words in str(caught.value)


@pytest.mark.parametrize("more", [
    {}, {"need_client_auth": "require", "auth_client": False}, {"auth_client": True},
    {"need_client_auth": "optional"}])
def test_a_list_that_would_revoke_nothing_is_refused(more):
    with pytest.raises(ConfigError, match=r"revokes nothing|authClient"):
        TlsConfig.from_properties({
            "tls.server.certPath": "/c", "tls.server.keyPath": "/k", "tls.server.crlPath": "/r",
            **{{"need_client_auth": "tls.server.need.client.auth", "auth_client": "tls.server.authClient"}[name]:
               str(value).lower() for name, value in more.items()}})
