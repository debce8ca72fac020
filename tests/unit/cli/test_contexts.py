"""Which server a command is for."""

from __future__ import annotations

import re

import pytest
import typer

from tailrace.cli.context_commands import _line, save
from tailrace.cli.contexts import (
    Target,
    change_context,
    contexts_of_file,
    select_context,
    target_of,
)
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


COMMENTED = '''# my servers
default = "shop"

[shop] # in production
broker = "10.0.0.7:10911"

[shop.tls]
trust_cert_path = "/ca.pem"

# the last one
[test]
namesrv = "a:1"
'''


def test_a_change_leaves_other_lines_as_they_are(contexts, tmp_path):
    path = tmp_path / "contexts.toml"
    contexts(COMMENTED)
    select_context("test")
    assert path.read_text() == COMMENTED.replace('default = "shop"\n', "").replace(
        "# my servers", 'default = "test"\n# my servers')
    change_context("new", {"broker": "h:1", "tls": {"trust_cert_path": '/a "b".pem', "auth_server": False}})
    assert target_of([], context="new").tls == TlsOptions(trust_cert_path='/a "b".pem', auth_server=False)
    change_context("shop", None)
    change_context("test", {"namesrv": "b:2"})
    text = path.read_text()
    assert "# the last one" not in text  # it stood in the table of shop
    assert "# my servers" in text
    assert target_of([])[:3] == ("", "", "b:2")
    change_context("test", None)
    assert contexts_of_file() == ("", {"new": {
        "broker": "h:1", "tls": {"trust_cert_path": '/a "b".pem', "auth_server": False}}})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_first_context_makes_file_and_directory_private(monkeypatch, tmp_path):
    monkeypatch.setenv("TAILRACE_CONTEXTS", str(tmp_path / "new" / "contexts.toml"))
    change_context("a", {"broker": "h:1"})
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert target_of([], context="a").broker == "h:1"


@pytest.mark.parametrize(("text", "change", "complaint"), [
    ('shop = { broker = "h:1" }\n', lambda: change_context("shop", None), "in a form that this command cannot change"),
    (SHOP, lambda: change_context("a b", {"broker": "h:1"}), "letters, digits, - and _ only"),
    (SHOP, lambda: change_context("default", {"broker": "h:1"}), "choose another name"),
    (SHOP, lambda: select_context("tets"), "has no context tets; is test meant?"),
    ("[shop\n", lambda: change_context("a", {"broker": "h:1"}), "is not TOML"),
])
def test_a_change_that_cannot_be_made_changes_nothing(contexts, tmp_path, text, change, complaint):
    contexts(text)
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        change()
    assert (tmp_path / "contexts.toml").read_text() == text


def test_a_password_of_a_key_is_not_shown():
    line = _line("a", "a", {"broker": "h:1", "tls": {"key_path": "/k", "key_password": "secret"}})
    assert line["tls"] == {"key_path": "/k", "key_password": "(hidden)"}


@pytest.mark.parametrize(("option", "address", "told"), [
    ("namesrv", "127.0.0.1", "has no port; write 127.0.0.1:9876"),
    ("broker", "h:x", "'x' is not a port; write h:10911"),
])
def test_an_address_that_cannot_be_one_is_not_saved(contexts, capsys, option, address, told):
    contexts(SHOP)
    with pytest.raises(typer.Exit):
        save("more", **{option: address})
    assert told in capsys.readouterr().err
    assert "more" not in contexts_of_file()[1]
