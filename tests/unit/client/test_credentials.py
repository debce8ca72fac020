"""Credentials of clients come from a file or from the environment."""

import pytest

from tailrace.client import AsyncProducer, Credentials
from tailrace.client.credentials import credentials_of, read_credentials
from tailrace.errors import ConfigError

ANN = Credentials("ann", "s3cret=x")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ann.credentials"
    path.write_text("# as conf/tools.yml\naccessKey: ann\nsecretKey: 's3cret=x'\n")
    path.chmod(0o600)
    return path


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("TAILRACE_CREDENTIALS", "TAILRACE_ACCESS_KEY", "TAILRACE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_file_of_either_form(file, caplog):
    assert read_credentials(str(file)) == ANN
    assert not caplog.records
    file.write_text("accessKey=ann\nsecretKey=s3cret=x\n")
    file.chmod(0o644)
    assert read_credentials(str(file)) == ANN
    (record,) = caplog.records
    assert record.getMessage() == f"credentials can be read by other users of this machine file={file}"


@pytest.mark.parametrize("text", [b"", b"accessKey: ann\n", b"accessKey: \nsecretKey: hidden\n", b"\xff"])
def test_a_file_with_an_error_is_named_and_not_shown(file, text):
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        read_credentials(str(file))
    assert str(file) in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_argument_wins_over_the_environment(file, monkeypatch):
    assert credentials_of(None) is None
    monkeypatch.setenv("TAILRACE_ACCESS_KEY", "eve")
    with pytest.raises(ConfigError, match="are used together"):
        credentials_of(None)
    monkeypatch.setenv("TAILRACE_SECRET_KEY", "e")
    assert credentials_of(None) == Credentials("eve", "e")
    monkeypatch.setenv("TAILRACE_CREDENTIALS", str(file))
    assert credentials_of(None) == ANN
    assert credentials_of(Credentials("bob", "b")) == Credentials("bob", "b")


def test_clients_do_not_show_the_secret(file):
    producer = AsyncProducer(broker="127.0.0.1:1", credentials=str(file))
    assert "s3cret" not in repr(producer._share._target)
    assert producer._share._target.credentials == ANN
