"""``tailrace broker status``: figures of running brokers."""

import re
from collections.abc import Mapping
from typing import Any, Final

import typer

from tailrace.cli.admin import ask
from tailrace.cli.arguments import AsJson
from tailrace.cli.contexts import Target, with_target
from tailrace.cli.output import print_fields, print_lines, wants_table
from tailrace.errors import RemotingError

__all__ = ["FIGURES", "fields_of", "status"]

FIGURES: Final = (
    "tailraceVersion", "brokerVersionDesc", "readOnly", "runtime", "putTps", "getTotalTps", "putLatency99",
    "commitLogMinOffset", "commitLogMaxOffset", "dispatchBehindBytes", "remainHowManyDataToFlush",
    "commitLogDirCapacity", "commitLogDiskRatio", "timerReadBehind", "timerCongestNum",
)
"""The most important figures of a broker."""
_CAPACITY: Final = re.compile(r"Total : (.+?), Free : (.+?)\.$")


@with_target
def status(*, server: Target, as_json: AsJson = False) -> None:
    """Show the figures of one broker, or of all of a name server, with their slaves.

    The table has the most important figures; with --json all of them are printed, as by mqadmin brokerStatus and
    haStatus. Rates are those of the last 10 seconds, minute and 10 minutes. The exit code is 1 if a broker does not
    answer.
    """
    found = ask(server, lambda admin: admin.broker_status())
    people, lines, is_whole = wants_table(as_json=as_json), list[dict[str, Any]](), True
    for address, one in found.items():
        if isinstance(one, RemotingError):
            is_whole = False
            lines.append({"broker": address, "error": str(one)})
        elif people:
            lines.append(fields_of(address, one.figures, one.replication))
        else:
            lines.append({"broker": address, **one.figures, "haStatus": one.replication})
    if people:
        for place, line in enumerate(lines):
            if place:
                print()
            print_fields(line)
    else:
        print_lines(lines)
    if not is_whole:
        raise typer.Exit(1)


def fields_of(address: str, table: Mapping[str, str], replication: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a broker, Tailrace or Java, for people: with units, and with the names that they use."""
    figures = {name: value.strip() for name, value in table.items()}
    seen = figures.get("brokerVersionDesc", "")
    own = figures.get("tailraceVersion", "")
    first, end = _number(figures, "commitLogMinOffset"), _number(figures, "commitLogMaxOffset")
    pending, late = figures.get("timerCongestNum"), figures.get("timerReadBehind")
    latency, dispatch = figures.get("putLatency99", ""), figures.get("dispatchBehindBytes", "")
    return {
        "broker": address,
        "version": f"Tailrace {own}; Java clients see {seen}" if own else seen,
        "readOnly": figures.get("readOnly", ""),
        **_replication(replication),
        "runningFor": _running(figures.get("runtime", "")),
        "messagesIn": _rates(figures.get("putTps", "")),
        "messagesOut": _rates(figures.get("getTransferredTps", "")),  # getTotalTps has empty reads as well
        "99PercentOfPutsWithin": f"{latency} ms" if latency.strip("0.") else "",
        "logBytes": None if first is None or end is None else end - first,
        "logPositions": "" if first is None or end is None else f"{first:,} to {end:,}",
        "notSynced": figures.get("remainHowManyDataToFlush", ""),
        "notDispatchedBytes": int(dispatch) if dispatch.isdecimal() else None,
        "disk": _disk(figures),
        "timers": f"{int(pending):,} pending, {late or 0} ms late" if pending and pending.isdecimal() else "",
    }


def _replication(status: Mapping[str, Any]) -> dict[str, str]:
    """Return what an HARuntimeInfo says: on a master each slave, on a slave how far it is."""
    if status.get("master"):
        return {"slaves": "; ".join(
            f"{slave['addr']} has all" if slave["diff"] <= 0
            else f"{slave['addr']} lacks {slave['diff']:,} bytes{'' if slave['inSync'] else ', not in sync'}"
            for slave in status.get("haConnectionInfo", ())) or "no slave is connected"}
    if not (slave := status.get("haClientRuntimeInfo")):
        return {}
    end, master_end = slave.get("maxOffset", 0), slave.get("masterMaxOffset")  # a Java slave does not say the second
    return {
        "slaveOf": slave.get("masterAddr", ""),
        "replication": ", ".join(filter(None, (
            slave.get("state"), slave.get("reason"),
            "" if master_end is None else f"lacks {max(0, master_end - end):,} bytes")))}


def _number(figures: Mapping[str, str], name: str) -> int | None:
    text = figures.get(name, "")
    return int(text) if text.isdecimal() else None


def _running(text: str) -> str:
    """Return ``1 h 40 min`` for ``[ 0 days, 1 hours, 40 minutes, 40 seconds ]``."""
    parts = [(int(number), unit) for number, unit in re.findall(r"(\d{1,9}) (day|hour|minute|second)s", text)]
    short = {"day": "d", "hour": "h", "minute": "min", "second": "s"}
    told = [f"{number} {short[unit]}" for number, unit in parts if number]
    return " ".join(told[:2]) or ("0 s" if parts else text)


def _rates(text: str) -> str:
    """Return the rate of the last 10 s, the first of RocketMQ's three (10 s, 1 min, 10 min); "" without one."""
    try:
        return f"{float(text.split(maxsplit=1)[0]):,.1f}/s in the last 10 s" if text.split() else ""
    except ValueError:
        return text


def _disk(figures: Mapping[str, str]) -> str:
    room = _CAPACITY.match(figures.get("commitLogDirCapacity", ""))
    text = f"{room[2]} of {room[1]} free" if room else figures.get("commitLogDirCapacity", "")
    try:
        share = float(figures.get("commitLogDiskRatio", "-1"))
    except ValueError:
        share = -1
    return f"{share:.0%} used, {text}".replace("%", " %") if share >= 0 else text
