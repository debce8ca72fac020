"""``tailrace broker status``: figures of running brokers."""

from typing import Final

from tailrace.cli.admin import ask
from tailrace.cli.arguments import AsJson, Broker, Context, Namesrv, Tls, errors
from tailrace.cli.contexts import target_of
from tailrace.cli.output import print_lines, print_table, wants_table

__all__ = ["FIGURES", "status"]

FIGURES: Final = (
    "brokerVersionDesc", "runtime", "putTps", "getTotalTps", "putLatency99", "commitLogMinOffset",
    "commitLogMaxOffset", "dispatchBehindBytes", "remainHowManyDataToFlush", "commitLogDirCapacity",
    "commitLogDiskRatio", "timerReadBehind", "timerCongestNum",
)
"""The most important figures of a broker."""


def status(
    broker: Broker = "", namesrv: Namesrv = "", context: Context = "", tls: Tls = None, as_json: AsJson = False,
) -> None:
    """Show the figures of one broker, or of every broker of a name server.

    The table has the most important figures; with --json all of them are printed, as by mqadmin brokerStatus.
    """
    with errors():
        found = ask(target_of([], broker, namesrv, context, tls=tls), lambda admin: admin.runtime_info())
    if not wants_table(as_json=as_json):
        print_lines({"broker": address, **table} for address, table in found.items())
        return
    for address, table in found.items():
        print(f"broker {address}")
        print_table([{"what": name, "value": table[name].strip()} for name in FIGURES if name in table])
