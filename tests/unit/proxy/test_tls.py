"""Certificates of the gRPC endpoint that its library cannot use are refused when they are read."""

from pathlib import Path

import pytest

pytest.importorskip("rocketmq.grpc_protocol")
pytest.importorskip("cryptography", reason="certificates of tests are made with it")
from certificates import Ca
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa

from tailrace.errors import ConfigError
from tailrace.proxy.tls import GrpcCertificate, GrpcFiles


@pytest.fixture
def ca(tmp_path):
    return Ca(tmp_path)


@pytest.mark.parametrize("make_key", [
    lambda: ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate,
    lambda: rsa.generate_private_key(65537, 2048)], ids=["curve", "ed25519", "rsa"])
def test_usual_keys_are_taken(make_key, ca):
    assert GrpcCertificate(GrpcFiles(*ca.make("server", key=make_key()))).credentials() is not None


@pytest.mark.parametrize(("make_key", "words"), [
    (lambda: ec.generate_private_key(ec.SECP256K1()), "the gRPC library cannot use this certificate"),
    (lambda: dsa.generate_private_key(2048), "the gRPC library cannot use this certificate"),
    (lambda: rsa.generate_private_key(65537, 1024), "the key has 1024 bits; RSA needs 2048 or more"),
], ids=["curve", "dsa", "short"])
def test_keys_that_no_connection_could_use_are_refused(make_key, words, ca):
    files = ca.make("server", key=make_key())
    with pytest.raises(ConfigError) as caught:
        GrpcCertificate(GrpcFiles(*files))
    assert words in str(caught.value)
    assert files[0] in str(caught.value)


def test_a_new_file_that_cannot_be_used_leaves_the_certificate_in_use(ca):
    files = ca.make("server")
    made = GrpcCertificate(GrpcFiles(*files))
    for old, new in zip(files, ca.make("other", key=ec.generate_private_key(ec.SECP256K1())), strict=True):
        Path(old).write_bytes(Path(new).read_bytes())
    with pytest.raises(ConfigError):
        made.load()
    assert made._changed() is None


@pytest.mark.parametrize(("name", "words"), [
    ("cert", "--grpc-tls"), ("key", "--grpc-tls-key"), ("trust", "tls.server.trustCertPath")])
def test_each_file_is_named(name, words, ca, tmp_path):
    cert, key = ca.make("server")
    files = {"cert": cert, "key": key, "trust": ca.path}
    for text in ("", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        Path(tmp_path / "bad").write_text(text)
        files[name] = str(tmp_path / "bad")
        with pytest.raises(ConfigError, match=words) as caught:
            GrpcCertificate(GrpcFiles(files["cert"], files["key"], trust_path=files["trust"]))
        assert files[name] in str(caught.value)
