"""``tailrace backup`` and ``tailrace restore``."""

from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.arguments import AsJson, Config, Store, errors, read_properties
from tailrace.cli.log_output import log_to_stderr
from tailrace.cli.output import Progress, local_time, print_lines, print_table, wants_table
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
    """Copy a store, which may be served.

    The first run copies everything, a later one what is new. A kill or a full disk leaves the backup of the run
    before. The report says up to where the log is in the backup.
    """
    from tailrace.doctor.backup import back_up, verify_backup  # noqa: PLC0415 - NumPy and kernels

    with errors():
        settings = StoreConfig.from_properties(read_properties(config))
        with Progress("backup") as progress:
            report = back_up(str(store.absolute()), str(directory.absolute()), settings, progress=progress)
        report["createdTime"] = local_time(report["createdMs"])
        if verify:
            with Progress("verify") as progress:
                verify_backup(str(directory.absolute()), progress=progress)
            report["verified"] = True
    _show(report, as_json=as_json)


def restore(
    directory: Directory,
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A directory to make.")],
    as_json: AsJson = False,
) -> None:
    """Make a store of a backup.

    Every checksum is compared, queues and index are rebuilt. STORE must not exist, or be empty; it is there when it is
    whole. The report is that of `tailrace recover`.
    """
    from tailrace.doctor.backup import restore as run_restore  # noqa: PLC0415 - NumPy and kernels

    log_to_stderr("warning")
    with errors(), Progress("restore") as progress:
        report = run_restore(str(directory.absolute()), str(store.absolute()), progress=progress)
    _show(report, as_json=as_json)


def _show(report: dict[str, object], *, as_json: bool) -> None:
    if wants_table(as_json=as_json):
        print_table([{"what": name, "value": value} for name, value in report.items() if value not in (None, "", [])])
    else:
        print_lines([report])
