"""TLS contexts of servers, from `tailrace.tls_settings.TlsConfig`, and of clients, from `TlsOptions`.

Both use OpenSSL through the standard library. If a certificate file cannot be used, ConfigError names the file and
the reason.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final

from tailrace.errors import ConfigError
from tailrace.tls_settings import TlsConfig

__all__ = ["TlsOptions", "client_context", "options_of", "outgoing_tls", "server_context", "tls_options"]

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_OF_1_3: Final = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""Suites of TLS 1.3, which OpenSSL enables by default. Python has no way to select some of them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS settings of a client, by the names of RocketMQ's ``tls.client.*``. All files are PEM files."""

    trust_cert_path: str = ""
    """File with the CA certificates that are trusted. Empty: the CAs that this machine trusts."""
    cert_path: str = ""
    """File with the certificate of the client, if servers require one."""
    key_path: str = ""
    """File with the private key of the client."""
    key_password: str = field(default="", repr=False)
    """Password of the private key, if it is encrypted."""
    auth_server: bool = True
    """Verify the server's certificate. Without that, an attacker on the network path can read and change all data."""
    check_server_name: bool = True
    """Require that the certificate names the host or address to which the client connects."""
    ciphers: str = ""
    """Cipher suites, in the form of ``tls.ciphers``."""
    protocols: str = ""
    """Protocol versions, in the form of ``tls.protocols``."""


_TRUE: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def tls_options(values: Mapping[str, Any], where: str) -> TlsOptions:
    """Return the options from values by the names of the members of `TlsOptions`. Raises ConfigError."""
    found: dict[str, Any] = {}
    problems = []
    for name, value in values.items():
        like = TlsOptions.__dataclass_fields__.get(name)
        if like is None:
            problems.append(f"{where}: TLS has no option {name}; it has {', '.join(TlsOptions.__dataclass_fields__)}")
        elif isinstance(like.default, bool):
            chosen = value if isinstance(value, bool) else _TRUE.get(str(value).strip().lower())
            if chosen is None:
                problems.append(f"{where}: {name} is true or false")
            found[name] = chosen
        elif isinstance(value, str):
            found[name] = value
        else:
            problems.append(f"{where}: {name} is a text")
    if problems:
        raise ConfigError(*problems)
    return TlsOptions(**found)


def options_of(tls: bool | TlsOptions | None) -> TlsOptions | None:
    """Return the options of the argument ``tls`` of a client; None without TLS. Raises ConfigError."""
    if tls is None or isinstance(tls, bool):
        return TlsOptions() if tls else None
    if not isinstance(tls, TlsOptions):
        raise ConfigError("tls is True, False or TlsOptions(...)")
    return tls


def client_context(tls: bool | TlsOptions | None) -> ssl.SSLContext | None:
    """Return the context for connections of a client; None without TLS. Raises ConfigError."""
    options = options_of(tls)
    if options is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.auth_server and options.check_server_name
    if not options.auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif options.trust_cert_path:
        _trust(context, options.trust_cert_path, "trust_cert_path")
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if bool(options.cert_path) != bool(options.key_path):
        raise ConfigError("cert_path and key_path of TLS: set both, or remove both")
    if options.cert_path:
        _certificate(context, options.cert_path, options.key_path, options.key_password)
    _choose(context, options.ciphers, options.protocols)
    return context


def outgoing_tls(config: TlsConfig) -> TlsOptions | None:
    """Return the TLS settings for the broker's connections to other brokers and name servers; None without TLS.

    With ``tls.test.mode.enable`` the certificate of the other side is made at its start, so it is not verified.
    """
    if not config.client_uses_tls:
        return None
    return TlsOptions(
        trust_cert_path=config.client_trust_cert_path, cert_path=config.client_cert_path,
        key_path=config.client_key_path, key_password=config.client_key_password,
        auth_server=config.client_auth_server and not config.test_mode,
        check_server_name=config.client_check_server_name,
        ciphers=config.ciphers, protocols=config.protocols)


def server_context(config: TlsConfig) -> ssl.SSLContext | None:
    """Return the context for connections to a server; None if the server has no certificate. Raises ConfigError."""
    if not config.serves_tls:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _choose(context, config.ciphers, config.protocols)
    if config.test_mode:
        from tailrace.remoting.tls_certificate import load_made_certificate  # noqa: PLC0415 - needs cryptography

        load_made_certificate(context)
        return context
    _certificate(context, config.cert_path, config.key_path, config.key_password)
    if config.verifies_clients:
        context.verify_mode = ssl.CERT_REQUIRED if config.need_client_auth == "require" else ssl.CERT_OPTIONAL
        if config.trust_cert_path:
            _trust(context, config.trust_cert_path, "tls.server.trustCertPath")
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        if config.crl_path:
            _revoke(context, config.crl_path)
    return context


def _trust(context: ssl.SSLContext, path: str, name: str) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} {path}: {_why(error)}") from None


def _revoke(context: ssl.SSLContext, path: str) -> None:
    """Have certificates refused that are in the lists of a file, or of a CA without a list that is up to date."""
    before = context.cert_store_stats()
    _trust(context, path, "tls.server.crlPath")
    after = context.cert_store_stats()
    if after["crl"] == before["crl"]:
        raise ConfigError(f"tls.server.crlPath {path}: the file has no list of revoked certificates (X509 CRL)")
    if after["x509"] != before["x509"]:
        raise ConfigError(
            f"tls.server.crlPath {path}: the file has certificates, which would be trusted; put them into the file of "
            "tls.server.trustCertPath")
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _certificate(context: ssl.SSLContext, cert_path: str, key_path: str, password: str) -> None:
    """Load a certificate and its key. The password is always passed, so that OpenSSL does not ask on the terminal."""
    try:
        context.load_cert_chain(cert_path, key_path, lambda: password)
    except (OSError, ValueError) as error:
        hint = ""
        if isinstance(error, ssl.SSLError) and "key values mismatch" in _why(error):
            hint = "; the key is of another certificate"
        elif isinstance(error, ssl.SSLError) and not isinstance(error, FileNotFoundError):
            hint = "; is one of them damaged, or is the password of the key wrong or missing?"
        raise ConfigError(f"certificate {cert_path} with key {key_path}: {_why(error)}{hint}") from None


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _choose(context: ssl.SSLContext, ciphers: str, protocols: str) -> None:
    """Set protocols and cipher suites from the texts of ``tls.protocols`` and ``tls.ciphers``."""
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        names = [name.strip() for name in protocols.split(",")]
        if wrong := [name for name in names if name not in _VERSIONS]:
            raise ConfigError(f"tls.protocols: {', '.join(wrong)} is not supported; known are TLSv1.2 and TLSv1.3")
        context.minimum_version = min(_VERSIONS[name] for name in names)
        context.maximum_version = max(_VERSIONS[name] for name in names)
    if not ciphers:
        return
    suites = [name.strip() for name in ciphers.split(",") if name.strip()]
    modern = [name for name in suites if name in _SUITES_OF_1_3]
    older = [name for name in suites if name not in _SUITES_OF_1_3]
    if modern and len(modern) < len(_SUITES_OF_1_3):
        raise ConfigError(f"tls.ciphers: the suites of TLSv1.3 can only be used together: {', '.join(_SUITES_OF_1_3)}")
    if older:
        try:
            context.set_ciphers(":".join(map(_openssl_name, older)))
        except ssl.SSLError:
            raise ConfigError(f"tls.ciphers: OpenSSL does not know any of {', '.join(older)}") from None
        chosen = {cipher["name"] for cipher in context.get_ciphers()}
        if wrong := [name for name in older if _openssl_name(name) not in chosen]:
            raise ConfigError(f"tls.ciphers: OpenSSL does not know {', '.join(wrong)}")
    if not modern:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version > 0:
        raise ConfigError("tls.ciphers has no suite for a protocol of tls.protocols")


def _openssl_name(name: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite such as ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, separator, cipher = name.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return name
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    exchange = "" if exchange == "RSA" else f"{exchange}_"
    return f"{exchange}{cipher}".replace("_", "-")
