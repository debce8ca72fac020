"""``tailrace backup`` and ``tailrace restore``."""

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.arguments import AsJson, Config, Store, complain, errors, read_properties
from tailrace.cli.contexts import tls_of
from tailrace.cli.output import Progress, local_time, show_one
from tailrace.config import StoreConfig

__all__ = ["backup", "restore"]

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of one store's backup.")]


def backup(
    store: Store,
    directory: Directory,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read the whole backup afterwards and compare checksums.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Copy a store, also while a server has it open.

    The first run copies everything, a later run only what is new. After a kill or a full disk, the backup of the
    previous run is still valid. The report has the position up to which the log is in the backup.

    Nothing in STORE changes.
    """
    from tailrace.doctor.backup import back_up, verify_backup  # noqa: PLC0415 - NumPy and kernels

    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        with Progress("backup") as progress:
            report = back_up(
                str(store.absolute()), str(directory.absolute()), settings, progress=progress, tls=tls_of())
        if "behind" in report:
            complain(f"the backup is {report['behind']}")
        report["createdTime"] = local_time(report["createdMs"])
        if verify:
            with Progress("verify") as progress:
                verify_backup(str(directory.absolute()), progress=progress)
            report["verified"] = True
    _show(report, as_json=as_json)


def restore(
    directory: Directory,
    store: Annotated[Path, typer.Argument(metavar="STORE", help="The directory to create.")],
    as_json: AsJson = False,
) -> None:
    """Create a store from a backup.

    All checksums are compared; queues and index are rebuilt. STORE must be empty or not exist; it appears when it is
    complete. The report is that of `tailrace recover`, with the number of messages and the time of the last one.

    This command writes to STORE.
    """
    from tailrace.doctor.backup import restore as run_restore  # noqa: PLC0415 - NumPy and kernels

    with errors(), Progress("restore") as progress:
        report = run_restore(str(directory.absolute()), str(store.absolute()), progress=progress)
    if last_ms := report["lastStoreTimestamp"]:
        report["lastStoreTime"] = local_time(last_ms)
    _show(report, as_json=as_json)


def _show(report: dict[str, object], *, as_json: bool) -> None:
    """Print a report; a table has times for people, without the milliseconds."""
    show_one(report, as_json=as_json, shown={
        name: value for name, value in report.items() if name not in {"createdMs", "lastStoreTimestamp"}})
