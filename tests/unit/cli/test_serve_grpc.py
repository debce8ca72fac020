"""The options of the gRPC endpoint: what stops the start, in one line."""

import subprocess
import sys

import pytest

from tailrace.cli import serve_grpc
from tailrace.cli.serve_grpc import GrpcPlace, grpc_place
from tailrace.cli.serve_settings import places_of, take_settings
from tailrace.errors import ConfigError

HERE = ("127.0.0.1", 0)


def test_a_port_of_the_file_is_on_the_address_of_the_broker():
    assert places_of(take_settings({}).broker).grpc is None
    config = take_settings({"grpcServerPort": "8081", "bindAddress": "0.0.0.0"}).broker
    assert places_of(config).grpc == ("0.0.0.0", 8081)
    assert places_of(config, grpc="127.0.0.1:0").grpc == ("127.0.0.1", 0)
    assert "0.0.0.0" in dict(places_of(config, grpc="0.0.0.0:0").open_hosts(authenticated=False))
    with pytest.raises(ValueError, match="--grpc 8081 is not HOST:PORT"):
        places_of(config, grpc="8081")


def test_options_that_do_not_fit_together_are_refused(tmp_path):
    pytest.importorskip("rocketmq.grpc_protocol")
    assert grpc_place(None, "", "") is None
    assert grpc_place(HERE, "", "") == GrpcPlace(HERE)
    assert grpc_place(HERE, "self-signed", "") == GrpcPlace(HERE, self_signed=True)
    for listen, certificate, key in (
        (None, "self-signed", ""), (HERE, "self-signed", "key"), (HERE, "file", ""), (HERE, "", "key"),
    ):
        with pytest.raises(ValueError, match="--grpc-tls"):
            grpc_place(listen, certificate, key)
    with pytest.raises(OSError, match="none"):
        grpc_place(HERE, str(tmp_path / "none"), str(tmp_path / "none"))


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(serve_grpc, "_PACKAGES", ("no_such_package.part",))
    with pytest.raises(ConfigError, match=r"no_such_package.part.*pip install 'tailrace\[grpc\]'"):
        grpc_place(HERE, "", "")


@pytest.mark.slow
def test_mistakes_end_the_start_with_one_line(tmp_path):
    pytest.importorskip("rocketmq.grpc_protocol")
    (tmp_path / "text.pem").write_text("no certificate")
    for options, words in (
        (["--grpc", "0.0.0.0:0"], "--allow-remote"),
        (["--grpc", "127.0.0.1:0", "--grpc-tls", str(tmp_path / "text.pem"), "--grpc-tls-key",
          str(tmp_path / "text.pem")], "cannot be read as PEM"),
        (["--grpc", "192.0.2.1:0", "--allow-remote"], "cannot listen on --grpc 192.0.2.1:0"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tailrace.cli", "serve", str(tmp_path / "store"), "--listen", "127.0.0.1:0",
             "--namesrv-listen", "127.0.0.1:0", *options], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
