"""``tailrace serve``: its options."""

import os
from pathlib import Path
from typing import Annotated, Optional

import typer

from tailrace.cli import completion
from tailrace.cli.arguments import Config, Store, errors, read_properties, usage
from tailrace.cli.importing import quick_imports
from tailrace.cli.interpreted import warn_if_interpreted
from tailrace.cli.log_output import log_to_stderr

__all__ = ["serve"]

Http = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address for /ready and /metrics, which answer from the start, and "
                      "for the console: pages for a browser, read-only without --console-actions.")]
ConsoleActions = Annotated[
    bool, typer.Option("--console-actions", help="Let users of the console act: send dead letters again, reset "
                       "groups, create topics, send test messages, delete expired files. Needs --http and users.")]
Grpc = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address for clients of RocketMQ 5 (gRPC), usually with port 8081; "
                      "port 0 picks one. Default: grpcServerPort of the file. Needs tailrace[grpc].")]
GrpcTls = Annotated[
    str, typer.Option(metavar="FILE", help="Certificate of the gRPC endpoint (PEM), if it is not that of "
                      "tls.server.certPath; self-signed to create one at the start; none for connections without "
                      "TLS.")]
AllowRemote = Annotated[
    bool, typer.Option(help="Listen on addresses that other machines can reach, although access control is off "
                       "(no --user) or does not exist (--http).")]
AllowPlain = Annotated[
    bool, typer.Option(help="Listen without TLS on addresses that other machines can reach, although users prove "
                       "themselves there: a recorded connection can be used to send requests as its user.")]
IgnoreSetting = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(metavar="NAME", help="Start although this setting of the file is not supported; may be repeated.")]
SetSetting = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option("--set", metavar="NAME=VALUE", help="A setting; wins over the file; may be repeated.",
                 autocompletion=completion.settings)]
AuditLogFile = Annotated[
    str, typer.Option(metavar="FILE", help="Append a JSON line for each request of administration, each denied request "
                      "and each log-in to the console. Default: auditLog of the file.")]
GrpcTlsKey = Annotated[str, typer.Option(metavar="FILE", help="Key of the certificate of --grpc-tls (PEM).")]
PasswordFile = Annotated[
    Optional[Path],  # noqa: UP045 - typer reads the annotation at run time
    typer.Option(metavar="FILE", help="A file with one line, the password of --user.")]


def serve(
    store: Store,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the broker; port 0 picks one. Default: bindAddress "
                          "and listenPort of the file, or 127.0.0.1:10911.")] = "",
    namesrv_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the name server; port 0 picks one; none: no name "
                          "server. Default: the address of this machine in namesrvAddr of the file, or "
                          "127.0.0.1:9876 if the file has no namesrvAddr.")] = "",
    http: Http = "", console_actions: ConsoleActions = False, grpc: Grpc = "",
    grpc_tls: GrpcTls = "", grpc_tls_key: GrpcTlsKey = "",
    config: Config = None,
    set_setting: SetSetting = None, ignore_setting: IgnoreSetting = None,
    allow_remote: AllowRemote = False, allow_plain: AllowPlain = False,
    user: Annotated[
        str, typer.Option(metavar="NAME", help="Switch access control on, and create this super user if the directory "
                          "has no user yet. Needs --password-file.")] = "",
    password_file: PasswordFile = None, audit_log: AuditLogFile = "",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error; to stderr.")] = "info",
    log_format: Annotated[str, typer.Option(help="text, or json: a JSON object for each line.")] = "text",
) -> None:
    """Serve a directory to RocketMQ clients.

    Broker and name server run in one process. A missing directory is created. When clients can be served, the first
    line on stdout is: ready broker=H:P namesrv=H:P recovered_ms=N, with --grpc also grpc=H:P

    H:P are the addresses on which the server listens. If clients receive another one (brokerIP1), advertised=H:P
    follows. SIGTERM, SIGINT and SIGHUP close the store cleanly; a second signal while the store is still being
    opened ends the process immediately, as a crash would.

    The broker also registers at the other name servers of namesrvAddr. The start fails if the file has a setting for
    security or durability that is not supported.

    Exit code 78: a setting was refused, so another start fails as well.

    This command writes to STORE.
    """
    log_to_stderr(log_level, log_format, times=True)
    with quick_imports():
        from tailrace.cli.serve import serve_store  # noqa: PLC0415 - asyncio and the broker
        from tailrace.cli.serve_grpc import grpc_place  # noqa: PLC0415
        from tailrace.cli.serve_readers import warn_about_readers  # noqa: PLC0415
        from tailrace.cli.serve_settings import places_of, read_password, set_by_hand, take_settings  # noqa: PLC0415

    warn_if_interpreted()
    if bool(user) != (password_file is not None):
        raise usage("--user and --password-file must be given together")
    with errors(refused_setting=os.EX_CONFIG):
        settings = take_settings(
            read_properties(config, refused_too=False) | set_by_hand(set_setting or []), ignore_setting or (),
            None if password_file is None else (user, read_password(password_file)), audit_log)
        try:
            places = places_of(settings.broker, listen, namesrv_listen, http, grpc)
            endpoint = grpc_place(places.grpc, grpc_tls, grpc_tls_key, settings.tls)
        except ValueError as error:
            raise usage(str(error)) from None
        if not allow_remote and (found := places.open_host(authenticated=settings.auth.authentication_enabled)):
            raise usage(
                f"{found[0]} can be reached by other machines and {found[1]}; add --allow-remote to listen there")
        places.check_plain(
            settings, grpc_encrypted=endpoint is not None and endpoint.encrypted, allowed=allow_plain)
        warn_about_readers(
            store, settings, config, password_file, Path(grpc_tls_key) if grpc_tls_key else None)
        serve_store(
            str(store), settings, places, endpoint,
            settings_file=str(config.resolve()) if config is not None else "", console_actions=console_actions)
