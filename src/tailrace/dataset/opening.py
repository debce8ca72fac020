"""``tailrace.scan``: messages of a directory, of an archive or of brokers as an Arrow dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.arrow import pyarrow
from tailrace.env.object_store import place_of
from tailrace.errors import ConfigError, NotAStoreError
from tailrace.formats.filenames import COMMITLOG
from tailrace.store.archive_store import MANIFESTS, is_remote

if TYPE_CHECKING:
    from tailrace.dataset.rows import RowsDataset
    from tailrace.remoting.tls import TlsOptions

__all__ = ["scan"]

_ADDRESSES: Final = re.compile(r"[^/\\\s;]+:\d{1,5}(;[^/\\\s;]+:\d{1,5})*")


def scan(
    place: str | os.PathLike[str] = "", *, namesrv: str = "", broker: str = "",
    topics: str | Iterable[str] | None = None, columns: Iterable[str] | None = None, decoded: bool = True,
    archive: str | os.PathLike[str] = "", config: str | os.PathLike[str] = "", mode: str = "FAILFAST",
    tls: bool | TlsOptions = False, credentials: str = "", timeout_ms: int = 3000,
) -> RowsDataset:
    """Return the messages of a store directory, of an archive or of brokers as a ``pyarrow.dataset.Dataset``.

    ``place`` is a directory, or HOST:PORT of a name server; instead of it, ``namesrv`` names name servers and
    ``broker`` one broker. ``tls``, ``credentials`` (a file) and ``timeout_ms`` (of a request) are for these.

    The dataset has the messages that the directory or the brokers had at the time of the call. Reading of a directory
    needs no lock, and a server may have it open. DuckDB, Polars and pandas read only the columns and the parts that a
    query needs: filters on `topic`, `queueId`, `queueOffset`, `commitLogOffset` and `storeTimestamp` choose the parts.

    ``topics`` is a topic or several; None means all topics, including those of the system. ``columns`` are columns of
    the Spark source, in their order. Bodies are decompressed if ``decoded``. ``archive`` is the archive of the store:
    messages that the log no longer has are read from it. ``config`` is a settings file of the store. ``mode`` says
    what happens at a damaged record: ``FAILFAST`` raises CorruptionError when it is read, ``DROPMALFORMED`` logs it,
    ``PERMISSIVE`` makes it a row with the reason in the column `damaged`.

    Raises ConfigError with every wrong argument, NotAStoreError, MissingPackageError without pyarrow.
    """
    pyarrow()
    if namesrv or broker or _is_address(place):
        if place and (namesrv or broker):
            raise ConfigError("pass one of place, namesrv and broker")
        if archive or config or mode != "FAILFAST":
            raise ConfigError("archive, config and mode are for a directory, not for brokers")
        return _of_brokers(
            namesrv or ("" if broker else str(place)), broker, topics, columns, decoded=decoded, tls=tls,
            credentials=credentials, timeout_ms=timeout_ms)
    if tls or credentials:
        raise ConfigError("tls and credentials are for brokers, not for a directory")
    from tailrace.dataset.rows import RowsDataset  # noqa: PLC0415 - needs pyarrow
    from tailrace.dataset.store import StoreRows, archive_alone  # noqa: PLC0415
    from tailrace.spark.source.offsets import open_directories  # noqa: PLC0415
    from tailrace.spark.source.options import parse_options  # noqa: PLC0415
    from tailrace.spark.source.schema import column_names  # noqa: PLC0415

    path = os.fspath(place)
    topics, columns = (
        names if names is None or isinstance(names, str) else tuple(names) for names in (topics, columns))
    given = {
        "path": path, "body": "decoded" if decoded else "stored", "mode": mode, "columns": _names("columns", columns),
        "subscribe": _names("topics", topics), "config": os.fspath(config)}
    if archive:
        given |= {"fallback": "archive", "archive": os.fspath(archive)}
    alone = _is_archive(path)
    if alone and (archive or config):
        raise ConfigError(f"{path} is an archive: pass neither archive nor config")
    if not alone and not config and not Path(path, COMMITLOG).is_dir():
        raise NotAStoreError(path, "it has neither a commitlog nor the _manifests of an archive")
    path = place_of(path).url if is_remote(path) else path
    options = parse_options({name: text for name, text in given.items() if text}, column_names, is_store=not alone)
    label = options.roots[0][0]
    directories = {label: archive_alone(path)} if alone else open_directories(options)
    again = partial(
        scan, path, topics=topics, columns=columns, decoded=decoded, archive=archive, config=config, mode=mode)
    return RowsDataset(StoreRows(directories, options, again))


def _is_address(place: str | os.PathLike[str]) -> bool:
    return isinstance(place, str) and not Path(place).exists() and bool(_ADDRESSES.fullmatch(place))


def _of_brokers(
    namesrv: str, broker: str, topics: str | Iterable[str] | None, columns: Iterable[str] | None, *, decoded: bool,
    tls: bool | TlsOptions, credentials: str, timeout_ms: int,
) -> RowsDataset:
    from tailrace.dataset.brokers import BrokerRows  # noqa: PLC0415 - needs pyarrow
    from tailrace.dataset.rows import RowsDataset  # noqa: PLC0415
    from tailrace.remoting.tls import options_of  # noqa: PLC0415 - sockets
    from tailrace.spark.source.options import parse_options  # noqa: PLC0415
    from tailrace.spark.source.schema import column_names  # noqa: PLC0415

    topics, columns = (
        names if names is None or isinstance(names, str) else tuple(names) for names in (topics, columns))
    given = {
        "namesrv": namesrv, "broker": broker, "body": "decoded" if decoded else "stored",
        "columns": _names("columns", columns), "subscribe": _names("topics", topics), "credentials": credentials,
        "subscribePattern": "" if topics else ".*", "timeoutMs": str(timeout_ms)}
    options = parse_options({name: text for name, text in given.items() if text}, column_names)
    assert options.brokers is not None
    options = replace(options, brokers=replace(options.brokers, tls=options_of(tls)))
    again = partial(
        scan, namesrv=namesrv, broker=broker, topics=topics, columns=columns, decoded=decoded, tls=tls,
        credentials=credentials, timeout_ms=timeout_ms)
    return RowsDataset(BrokerRows(options, again))


def _names(argument: str, names: str | tuple[str, ...] | None) -> str:
    """Return names with commas. Raises ConfigError for an empty list and for a name with a comma."""
    if names is None:
        return ""
    found = [names] if isinstance(names, str) else [*names]
    if not found or not all(name and "," not in name for name in found):
        raise ConfigError(f"{argument}={found!r} is not a list of names")
    return ",".join(found)


def _is_archive(path: str) -> bool:
    return is_remote(path) or (Path(path, MANIFESTS).is_dir() and not Path(path, COMMITLOG).is_dir())
