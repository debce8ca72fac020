"""TLS settings of a server, by RocketMQ's names.

A Java broker takes them from system properties and from the file that ``tls.config.file`` names, whose values
win. Here they may also be in the file that ``--config`` names, also as ``tlsServerMode`` and the like.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.config import _Config, _option, option_name
from tailrace.errors import ConfigError
from tailrace.properties import settings_in
from tailrace.spellings import meant

__all__ = ["DEFAULT_TLS_FILE", "TLS_ALIASES", "TLS_NAMES", "TlsConfig", "tls_config_of"]

DEFAULT_TLS_FILE: Final = "/etc/rocketmq/tls.properties"
_ONLY_OUTSIDE: Final = ("tls.server.mode", "tls.enable", "tls.config.file")
"""Settings that a Java broker does not take from the file of TLS settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(_Config):
    """Encryption of connections. Paths are of PEM files."""

    mode: str = _option(
        "permissive", "`permissive`: a connection whose first byte is 0x16 uses TLS, others do not. `enforcing`: all "
        "use TLS. `disabled`: none does.",
        name="tls.server.mode", choices=("disabled", "permissive", "enforcing"), main=True)
    config_file: str = _option(
        DEFAULT_TLS_FILE, "File with the other settings of this table, whose values win. The default one need not "
        "exist.", name="tls.config.file")
    test_mode: bool = _option(
        False, "Whether the server makes a certificate when it starts, which no client can verify. The default of a "
        "Java broker is true.", name="tls.test.mode.enable")
    cert_path: str = _option(
        "", "Certificate of the server, with the ones between it and the CA. Empty: connections with TLS are "
        "closed.", name="tls.server.certPath", main=True)
    key_path: str = _option("", "Private key of the server.", name="tls.server.keyPath", secret_file=True, main=True)
    key_password: str = _option(
        "", "Password of that key, if it is encrypted.", name="tls.server.keyPassword", secret=True)
    need_client_auth: str = _option(
        "none", "Whether clients need a certificate of their own: `none`, `optional` or `require`.",
        name="tls.server.need.client.auth", choices=("none", "optional", "require"))
    auth_client: bool = _option(
        False, "Whether certificates of clients are verified; has to be true for `require`.",
        name="tls.server.authClient")
    trust_cert_path: str = _option(
        "", "Certificates of the CAs of clients. Empty: the CAs that this machine trusts.",
        name="tls.server.trustCertPath")
    crl_path: str = _option(
        "", "Lists of revoked certificates of clients (PEM), one of each CA that signs clients. A client whose "
        "certificate is in a list, or of a CA without a list that is up to date, cannot connect.",
        name="tls.server.crlPath")
    ciphers: str = _option(
        "", "Cipher suites, separated by `,`, by their names in Java. Empty: the default ones of OpenSSL.",
        name="tls.ciphers")
    protocols: str = _option(
        "", "`TLSv1.2`, `TLSv1.3` or both, separated by `,`. Empty: both.", name="tls.protocols")
    client_enable: str = _option(
        "", "Whether the broker uses TLS to name servers of other processes: `true` or `false`. Empty: if the mode "
        "is `enforcing`.", name="tls.enable", choices=("", "true", "false"))
    client_auth_server: bool = _option(
        True, "Whether the broker verifies the certificate of such a name server. The default of a Java broker is "
        "false.", name="tls.client.authServer")
    client_check_server_name: bool = _option(
        True, "Whether that certificate must name the host of `namesrvAddr`. A Java broker does not compare it.",
        name="tls.client.checkServerName")
    client_trust_cert_path: str = _option(
        "", "Certificates of the CAs of name servers. Empty: the CAs that this machine trusts.",
        name="tls.client.trustCertPath")
    client_cert_path: str = _option(
        "", "Certificate that the broker shows to name servers.", name="tls.client.certPath")
    client_key_path: str = _option(
        "", "Private key of that certificate.", name="tls.client.keyPath", secret_file=True)
    client_key_password: str = _option(
        "", "Password of that key, if it is encrypted.", name="tls.client.keyPassword", secret=True)
    handshake_timeout_seconds: int = _option(
        10, "A connection whose TLS handshake is not complete after this time is closed.", unit="s", low=1,
        high=3600, name="tlsHandshakeTimeoutSeconds")
    handshakes_max: int = _option(
        1000, "Incomplete TLS handshakes of all ports together; when one more begins, the oldest one is closed.",
        low=1, high=1 << 20, name="tlsHandshakesMax")
    handshakes_per_address: int = _option(
        256, "The same for each address of a client.", low=1, high=1 << 20, name="tlsHandshakesPerAddress")

    @property
    def serves_tls(self) -> bool:
        """Whether a connection can use TLS."""
        return self.mode != "disabled" and (self.test_mode or bool(self.cert_path))

    @property
    def verifies_clients(self) -> bool:
        """Whether certificates of clients are requested, and verified.

        Without verification (``authClient=false``) a certificate proves nothing, so the server does not request it.
        """
        return self.auth_client and self.need_client_auth != "none" and not self.test_mode

    @property
    def client_uses_tls(self) -> bool:
        """Whether the broker's own connections to name servers use TLS."""
        return self.client_enable == "true" or (not self.client_enable and self.mode == "enforcing")

    def validate(self) -> list[str]:
        """Return a sentence for each value that cannot work."""
        problems = _Config.validate(self)
        if bool(self.cert_path) != bool(self.key_path):
            problems.append("tls.server.certPath and tls.server.keyPath: set both, or remove both")
        if bool(self.client_cert_path) != bool(self.client_key_path):
            problems.append("tls.client.certPath and tls.client.keyPath: set both, or remove both")
        if self.mode == "enforcing" and not self.cert_path and not self.test_mode:
            problems.append(
                "tls.server.mode=enforcing needs tls.server.certPath and tls.server.keyPath: without a certificate "
                "no client could connect")
        if self.need_client_auth == "require" and not self.auth_client:
            problems.append(
                "tls.server.need.client.auth=require with tls.server.authClient=false would accept every certificate: "
                "set tls.server.authClient=true")
        if self.need_client_auth == "require" and self.test_mode:
            problems.append(
                "tls.test.mode.enable=true does not verify clients, which tls.server.need.client.auth=require "
                "promises: set one of the two")
        if self.crl_path and not self.verifies_clients:
            problems.append(
                "tls.server.crlPath revokes nothing, because no certificate of a client is verified: set "
                "tls.server.need.client.auth and tls.server.authClient=true, or remove it")
        return problems


TLS_NAMES: Final = frozenset(option_name(f) for f in dataclasses.fields(TlsConfig))
TLS_ALIASES: Final[Mapping[str, str]] = {
    "useTLS": "tls.enable",
    "tlsEnable": "tls.enable",
    "tlsServerMode": "tls.server.mode",
    "tlsTestModeEnable": "tls.test.mode.enable",
    "tlsServerNeedClientAuth": "tls.server.need.client.auth",
    "tlsServerKeyPath": "tls.server.keyPath",
    "tlsServerKeyPassword": "tls.server.keyPassword",
    "tlsServerCertPath": "tls.server.certPath",
    "tlsServerAuthClient": "tls.server.authClient",
    "tlsServerTrustCertPath": "tls.server.trustCertPath",
}
"""Other names of settings, as the fields of RocketMQ have them."""


_KNOWN: Final = TLS_NAMES | TLS_ALIASES.keys()
_LIKE_TLS: Final = re.compile(r"(?i:tls[._-])|tls[A-Z]")
"""Names that promise something of TLS. A misspelt one would leave connections less protected than the file says."""


def tls_config_of(values: Mapping[str, str], read: Callable[[str], str | None]) -> TlsConfig:
    """Return the TLS settings of a file, and of the file that ``tls.config.file`` names.

    ``read`` returns the text of a file, None if it does not exist. Raises ConfigError with every problem.
    """
    if wrong := [name for name in values if name not in _KNOWN and _LIKE_TLS.match(name)]:
        raise ConfigError(*(f"the file of --config has no setting {name}{meant(name, _KNOWN, 0.8)}" for name in wrong))
    named = _named(values)
    path = named.get("tls.config.file", DEFAULT_TLS_FILE)
    text = read(path)
    if text is None:
        if path != DEFAULT_TLS_FILE:
            raise ConfigError(f"tls.config.file={path} cannot be read")
        return TlsConfig.from_properties(named)
    said = settings_in(text.encode(), path)
    if wrong := [name for name in said if name not in _KNOWN]:
        raise ConfigError(*(
            f"{path} has {name}, which is not a setting of TLS{meant(name, _KNOWN, 0.8)}" for name in wrong))
    more = _named(said)
    if wrong := [name for name in _ONLY_OUTSIDE if name in more]:
        raise ConfigError(*(f"{path} has {name}, which only counts in the file of --config" for name in wrong))
    return TlsConfig.from_properties({**named, **more})


def _named(values: Mapping[str, str]) -> dict[str, str]:
    """Return the TLS settings of a file by their first names. Raises ConfigError for one that is given twice."""
    found = {name: values[name].strip() for name in TLS_NAMES if name in values}
    for alias, name in TLS_ALIASES.items():
        if alias in values and found.setdefault(name, values[alias].strip()) != values[alias].strip():
            raise ConfigError(f"{alias} and {name} have different values")
    for name in ("tls.server.need.client.auth", "tls.server.mode", "tls.enable"):
        if name in found:
            found[name] = found[name].lower()
    return found
