"""The gRPC endpoint of ``tailrace serve``: its options, address and certificate.

The settings ``tls.server.*`` cover this port as all others, unless ``--grpc-tls`` gives it a certificate of its own.
A setting that the gRPC library cannot follow stops the start.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from tailrace import events
from tailrace.broker.core.listeners import Address
from tailrace.env.clock import SystemClock
from tailrace.errors import ConfigError, MissingPackageError
from tailrace.logs import get_logger
from tailrace.remoting.tls_reload import Certificate, TlsReload
from tailrace.tls_settings import TlsConfig

if TYPE_CHECKING:
    from tailrace.proxy.server import GrpcListener
    from tailrace.remoting.limits import CallLimits

__all__ = ["GrpcPlace", "grpc_place"]

_log = get_logger(__name__)
SELF_SIGNED: Final = "self-signed"
NONE: Final = "none"
_PACKAGES: Final = ("grpc", "google.protobuf", "rocketmq.grpc_protocol")


class GrpcPlace(NamedTuple):
    """Address and certificate of the endpoint. Without a certificate it accepts connections without TLS."""

    listen: Address
    cert_path: str = ""
    key_path: str = ""
    key_password: str = ""
    self_signed: str = ""
    """The setting or option that has the server make a certificate."""
    trust_path: str = ""
    """CAs of clients. Empty: clients need no certificate."""
    own: bool = False
    """Whether the certificate is that of ``--grpc-tls``."""

    @property
    def encrypted(self) -> bool:
        """Whether all connections use TLS."""
        return bool(self.cert_path or self.self_signed)

    def credentials(self, reload: TlsReload) -> object:
        """Return the credentials, which ``reload`` renews; None without TLS. Raises ConfigError."""
        if not self.encrypted:
            return None
        from tailrace.proxy.tls import GrpcCertificate, GrpcFiles, made_credentials  # noqa: PLC0415 - only with --grpc

        if self.self_signed:
            from tailrace.remoting.tls_certificate import self_signed  # noqa: PLC0415

            events.THE_CERTIFICATE_IS_MADE_BY_THE_SERVER.log(_log, reason=self.self_signed)
            return made_credentials(*self_signed(SystemClock(), self.listen[0]), self.trust_path)
        names = ("--grpc-tls", "--grpc-tls-key") if self.own else ("tls.server.certPath", "tls.server.keyPath")
        made = GrpcCertificate(GrpcFiles(self.cert_path, self.key_path, self.key_password, self.trust_path, *names))
        reload.add(Certificate(
            load=made.load, setting="--grpc-tls" if self.own else "tls.server.certPath", path=self.cert_path,
            key_path=self.key_path, trust_path=self.trust_path))
        return made.credentials()

    def listener(self, credentials: object, limits: CallLimits) -> GrpcListener:
        """Listen. Raises OSError."""
        from tailrace.proxy.server import GrpcListener  # noqa: PLC0415 - only with --grpc

        return GrpcListener(*self.listen, credentials, limits)


def grpc_place(listen: Address | None, certificate: str, key: str, tls: TlsConfig) -> GrpcPlace | None:
    """Return the endpoint from options and settings; None if it is not configured.

    Raises ValueError for options that contradict each other, MissingPackageError, and ConfigError if a setting of TLS
    cannot be honoured on this port.
    """
    if listen is None:
        if certificate or key:
            raise ValueError("--grpc-tls and --grpc-tls-key need --grpc or the setting grpcServerPort")
        return None
    if missing := [name for name in _PACKAGES if not _is_installed(name)]:
        raise MissingPackageError("clients of RocketMQ 5 (gRPC)", ", ".join(missing), "grpc")
    made = _place(listen, certificate, key, tls)
    if not made.encrypted:
        return made
    if not _is_installed("cryptography"):
        raise MissingPackageError("encrypted connections of --grpc", "cryptography", "grpc")
    if problems := _not_honoured(tls):
        raise ConfigError(*problems)
    return made._replace(trust_path=tls.trust_cert_path if _requires_clients(tls) else "")


def _place(listen: Address, certificate: str, key: str, tls: TlsConfig) -> GrpcPlace:
    if certificate in {SELF_SIGNED, NONE}:
        if key:
            raise ValueError(f"--grpc-tls-key goes with a certificate of --grpc-tls, not with {certificate}")
        if certificate == SELF_SIGNED:
            return GrpcPlace(listen, self_signed="--grpc-tls self-signed")
        if tls.mode == "enforcing":
            raise ConfigError(
                "--grpc-tls none contradicts tls.server.mode=enforcing, which closes connections without TLS on every "
                "port")
        return GrpcPlace(listen)
    if bool(certificate) != bool(key):
        raise ValueError("--grpc-tls FILE and --grpc-tls-key FILE go together; --grpc-tls self-signed needs no key")
    if certificate:
        return GrpcPlace(listen, certificate, key, own=True)
    if not tls.serves_tls:
        return GrpcPlace(listen)
    if tls.mode != "enforcing":
        raise ConfigError(
            "tls.server.mode=permissive serves connections with and without TLS on one port, which --grpc cannot: set "
            "tls.server.mode=enforcing, or --grpc-tls FILE with --grpc-tls-key FILE for connections with TLS only (the "
            "files of tls.server.certPath and tls.server.keyPath may be named), or --grpc-tls none for connections "
            "without TLS only")
    if tls.test_mode:
        return GrpcPlace(listen, self_signed="tls.test.mode.enable")
    return GrpcPlace(listen, tls.cert_path, tls.key_path, tls.key_password)


def _requires_clients(tls: TlsConfig) -> bool:
    return tls.verifies_clients and tls.need_client_auth == "require"


def _not_honoured(tls: TlsConfig) -> list[str]:
    """Return a sentence for each setting of TLS that the gRPC library cannot honour."""
    found = []
    if tls.verifies_clients and tls.need_client_auth == "optional":
        found.append(
            "tls.server.need.client.auth=optional cannot be honoured by --grpc, which requires certificates of clients "
            "or asks for none: set require or none")
    if _requires_clients(tls) and not tls.trust_cert_path:
        found.append(
            "tls.server.need.client.auth=require with --grpc needs tls.server.trustCertPath, the certificates of the "
            "CAs of clients: the gRPC library does not use the CAs that this machine trusts")
    if tls.crl_path:
        found.append(
            "tls.server.crlPath cannot be honoured by --grpc: the gRPC library for Python checks no lists of revoked "
            "certificates. Remove --grpc, or give clients certificates of a short life instead of a list")
    if tls.protocols and len(set(tls.protocols.replace(" ", "").split(","))) == 1:
        found.append(
            f"tls.protocols={tls.protocols} cannot be honoured by --grpc, which always serves TLSv1.2 and TLSv1.3")
    if tls.ciphers:
        found.append("tls.ciphers cannot be honoured by --grpc, whose library chooses the suites itself")
    return found


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
