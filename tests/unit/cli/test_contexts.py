"""Which server a command is for."""

from __future__ import annotations

import pytest
import typer

from tailrace.cli.contexts import Target, target_of
from tailrace.errors import ConfigError
from tailrace.remoting.tls import TlsOptions


@pytest.fixture
def contexts(monkeypatch, tmp_path):
    """Write the file of contexts."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("TAILRACE_CONTEXTS", str(tmp_path / "contexts.toml"))
    return (tmp_path / "contexts.toml").write_text


SHOP = '[shop]\nbroker = "10.0.0.7:10911"\n[test]\nnamesrv = "a:1;b:2"\n'


def test_without_a_name_the_order_is_environment_default_and_this_machine(contexts, monkeypatch):
    assert target_of([])[:3] == ("", "", "127.0.0.1:9876")
    contexts('default = "shop"\n' + SHOP)
    assert target_of([])[:3] == ("", "10.0.0.7:10911", "")
    monkeypatch.setenv("NAMESRV_ADDR", "h:9")
    assert target_of([])[:3] == ("", "", "h:9")
    assert target_of([], context="test")[:3] == ("", "", "a:1;b:2")


def test_a_named_target_wins_and_two_are_refused(contexts):
    assert target_of(["s"]) == Target("s")
    assert target_of([], "h:1") == Target(broker="h:1")
    with pytest.raises(typer.Exit):
        target_of(["s"], namesrv="h:1")


@pytest.mark.parametrize(("text", "name", "complaint"), [
    (SHOP, "shp", "has no context shp; is shop meant?"),
    (SHOP, "zzz", "has no context zzz; it has: shop, test"),
    ("[shop]\n", "shop", "context shop needs one line"),
    ('[shop]\nbroker = 5\n', "shop", "context shop needs one line"),
    ('[shop]\nport = "5"\n', "shop", "context shop needs one line"),
    ("shop =", "shop", "is not TOML"),
    ('default = "gone"\n' + SHOP, "", "has no context gone"),
])
def test_a_broken_file_is_named(contexts, text, name, complaint):
    contexts(text)
    with pytest.raises(ConfigError, match=r"contexts\.toml") as error:
        target_of([], context=name)
    assert complaint in str(error.value)


def test_tls_comes_from_the_option_the_context_or_the_environment(contexts, monkeypatch):
    contexts('[plain]\nbroker = "h:1"\ntls = false\n[on]\nbroker = "h:1"\ntls = true\n'
                '[own]\nbroker = "h:1"\ntls = { trust_cert_path = "/own.pem", check_server_name = false }\n')
    assert target_of([], "h:1").tls is None
    assert target_of([], "h:1", tls=True).tls == TlsOptions()
    assert target_of([], context="on").tls == TlsOptions()
    assert target_of([], context="on", tls=False).tls is None
    monkeypatch.setenv("TAILRACE_TLS_TRUST_CERT_PATH", "/env.pem")
    monkeypatch.setenv("TAILRACE_TLS_AUTH_SERVER", "false")
    assert target_of([], "h:1").tls is None
    monkeypatch.setenv("TAILRACE_TLS", "true")
    assert target_of([], "h:1").tls == TlsOptions(trust_cert_path="/env.pem", auth_server=False)
    assert target_of([], context="plain").tls is None
    assert target_of([], context="own").tls == TlsOptions(
        trust_cert_path="/own.pem", auth_server=False, check_server_name=False)
    assert target_of(["/store"], tls=None).tls is not None


@pytest.mark.parametrize(("said", "text"), [
    ("tls = 3", "tls is true, false or a table"), ("tls = { ca = 'x' }", "TLS has no option ca"),
    ("tls = { auth_server = 'perhaps' }", "auth_server is true or false"),
    ("tls = { key_path = 3 }", "key_path is a text"),
])
def test_mistakes_about_tls_are_named(contexts, said, text):
    contexts(f'[shop]\nbroker = "h:1"\n{said}\n')
    with pytest.raises(ConfigError, match=text) as caught:
        target_of([], context="shop")
    assert "context shop" in str(caught.value)


def test_mistakes_of_the_environment_are_named(contexts, monkeypatch):
    monkeypatch.setenv("TAILRACE_TLS", "yes please")
    with pytest.raises(ConfigError, match="TAILRACE_TLS=yes please is neither true nor false"):
        target_of([], "h:1")
    monkeypatch.setenv("TAILRACE_TLS", "true")
    monkeypatch.setenv("TAILRACE_TLS_CA", "x")
    with pytest.raises(ConfigError, match=r"the environment \(TAILRACE_TLS_\*\): TLS has no option ca"):
        target_of([], "h:1")
