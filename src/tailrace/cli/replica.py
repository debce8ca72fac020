"""Commands on a slave: promote, replica reset."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tailrace.cli.arguments import (
    AsJson,
    Broker,
    Config,
    Store,
    Where,
    Yes,
    complain,
    confirm,
    errors,
    read_properties,
    usage,
)
from tailrace.cli.interpreted import warn_if_interpreted
from tailrace.cli.output import show
from tailrace.config import BrokerRole, StoreConfig
from tailrace.errors import ConfigError, StoreError, StoreLockedError
from tailrace.java_settings import refused_settings

__all__ = ["promote", "reset"]


def promote(
    store: Where = "", broker: Broker = "",
    config: Config = None,
    role: Annotated[str, typer.Option(
        metavar="ROLE", help="ASYNC_MASTER or SYNC_MASTER. Default: that of its master.")] = "",
    yes: Yes = False, as_json: AsJson = False,
) -> None:
    """Make a stopped slave the master, after its master is lost.

    Shows what the slave lacked when its master answered last, asks for confirmation, and changes brokerRole and
    brokerId in the file of --config, for the next start. Refused while a process listens at the master's address.

    Nothing in STORE changes. A running slave keeps its role: --broker shows what it lacks, and the commands to run.
    """
    if bool(store) == bool(broker):
        raise usage("name a stopped slave with STORE, or a running one with --broker")
    warn_if_interpreted()
    with errors():
        if broker:
            raise _running(broker, as_json=as_json)
        _promote(Path(store).absolute(), config, role, yes=yes, as_json=as_json)


def _promote(store: Path, config: Path | None, role: str, *, yes: bool, as_json: bool) -> None:
    import asyncio  # noqa: PLC0415 - help and complaints need none

    from tailrace.broker.core.settings import SettingsFile  # noqa: PLC0415
    from tailrace.cli.serve_settings import take_settings  # noqa: PLC0415
    from tailrace.env import OsFileSystem  # noqa: PLC0415
    from tailrace.ha.promotion import is_listening, standing_of  # noqa: PLC0415

    if config is None:
        raise usage("--config FILE is needed: the role of a slave is in its settings file")
    values = _slave_settings(config)
    files = OsFileSystem()
    try:
        found = standing_of(files, str(store), StoreConfig.from_properties(values))
    except StoreLockedError as error:
        raise StoreError(f"{error}. {_stop_first(str(store), str(config), error.pid)}") from None
    wanted = _role(role) if role else found.role
    changes = {"brokerRole": wanted.value, "brokerId": "0"}
    if values.get("haMasterAddress"):
        changes["haMasterAddress"] = ""
    # It refuses settings that do not fit a master, before anything is asked; --ignore-setting is an option of serve.
    take_settings({**values, **changes}, refused_settings(values))
    known = found.known
    show([{
        "store": str(store), "end": found.end, "master": known.address if known else "",
        "masterEnd": known.end if known else None, "masterAnsweredTimestamp": known.time_ms if known else None,
        "lackingBytes": found.lacks, "brokerRole": wanted.value}], as_json=as_json)
    if known and asyncio.run(is_listening(known.address)):
        raise StoreError(
            f"the master still listens at {known.address}: two masters of one name would have two logs. Stop it first; "
            "the slave gets the rest of its log before it ends")
    confirm(f"make the slave {store} the master, {found.sentence()}", yes=yes)
    SettingsFile(files, str(config.resolve())).write(changes)
    complain(f"{config} is now that of a master; run: tailrace serve {store} --config {config}")


def _slave_settings(config: Path) -> dict[str, str]:
    """Return the settings of a slave. Raises ConfigError for those of another broker."""
    values = read_properties(config)
    role = StoreConfig.from_properties(values).broker_role
    if role is not BrokerRole.SLAVE:
        raise ConfigError(f"{config} has brokerRole={role.value}, it is not that of a slave")
    return values


def _role(text: str) -> BrokerRole:
    masters = {one.value: one for one in BrokerRole if one is not BrokerRole.SLAVE}
    if text not in masters:
        raise usage(f"--role {text} is not one of {', '.join(masters)}")
    return masters[text]


def _stop_first(store: str, config: str, pid: int = 0) -> str:
    stop = f"kill -TERM {pid}" if pid else "stop its process with SIGTERM"
    return f"A running slave does not change its role: {stop}, then run: tailrace promote {store} --config {config}"


def _running(broker: str, *, as_json: bool) -> StoreError:
    """Show what a running slave lacks; return the refusal of its promotion."""
    from tailrace.cli.admin import ask  # noqa: PLC0415
    from tailrace.cli.contexts import Target, tls_of  # noqa: PLC0415
    from tailrace.properties import parse_properties  # noqa: PLC0415

    target = Target(broker=broker, tls=tls_of())
    settings = parse_properties(next(iter(ask(target, lambda admin: admin.broker_settings()).values())))
    if (role := settings.get("brokerRole", "")) != BrokerRole.SLAVE.value:
        raise StoreError(f"the broker at {broker} has brokerRole={role}, it is not a slave")
    found: dict[str, Any] = ask(target, lambda admin: admin.ha_status()).get("haClientRuntimeInfo") or {}
    end, master_end = int(found.get("maxOffset", 0)), found.get("masterMaxOffset")  # a Java slave does not say
    show([{
        "broker": broker, "end": end, "master": found.get("masterAddr", ""), "masterEnd": master_end,
        "lackingBytes": None if master_end is None else max(0, int(master_end) - end),
        "state": found.get("state"), "reason": found.get("reason")}], as_json=as_json)
    return StoreError(_stop_first(settings.get("storePathRootDir", "STORE"), "FILE"))


def reset(store: Store, config: Config = None, yes: Yes = False, as_json: AsJson = False) -> None:
    """Move the files of a stopped slave aside, so that it copies its master again.

    The files are moved to tailrace/replaced in STORE, and those of other directories of storePathCommitLog to a new
    directory in each of them. They take room until you delete them. Users stay. This command writes to STORE.
    """
    from tailrace.env import OsFileSystem  # noqa: PLC0415
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.ha.slave_reset import reset_slave  # noqa: PLC0415

    if config is None:
        raise usage("--config FILE is needed: it says that STORE is a slave")
    with errors():
        settings = StoreConfig.from_properties(_slave_settings(config))
        confirm(f"move the files of the slave {store} aside and copy its master again", yes=yes)
        aside, moved = reset_slave(
            OsFileSystem(), str(store.absolute()), settings, str(SystemClock().now_ms() // 1000))
    elsewhere = [name for name in moved if name.startswith("/")]
    show([{"store": str(store), "movedTo": aside, "moved": len(moved), **(
        {"logMovedTo": elsewhere} if elsewhere else {})}], as_json=as_json)
