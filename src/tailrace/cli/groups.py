"""``tailrace group``: consumer groups of a directory or of a running broker."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from tailrace.cli import completion, output
from tailrace.cli.admin import administer, ask
from tailrace.cli.arguments import AsJson, Create, Every, Yes, confirm, key_values, usage
from tailrace.cli.contexts import Target, with_target
from tailrace.cli.output import (
    deleted_line,
    local_time,
    print_lines,
    print_table,
    show,
    show_listing,
    wants_table,
)
from tailrace.cli.problems import no_such
from tailrace.config import whole_number
from tailrace.errors import StoreError
from tailrace.spellings import time_ms

if TYPE_CHECKING:
    from tailrace.cli.listings import Administration
    from tailrace.client.admin import GroupQueue

__all__ = ["create", "delete", "list_all", "reset", "show_one"]

Name = Annotated[str, typer.Argument(
    metavar="[STORE] GROUP", help="A store directory, if no server is named, and the name of a consumer group.",
    autocompletion=completion.words_of_groups)]


def _checked(target: Target, group: str) -> "tuple[list[GroupQueue], list[dict[str, Any]]]":
    """Return the queues and the members of a group. Raises StoreError with the most similar name if it does not exist.

    Members are those of a running broker.
    """
    from tailrace.cli.store_admin import to_read  # noqa: PLC0415 - NumPy and the store
    from tailrace.node.subscription_group import is_system_group  # noqa: PLC0415

    async def found(admin: "Administration") -> "tuple[list[GroupQueue], list[dict[str, Any]]]":
        groups = await admin.groups()
        if group not in groups:
            raise no_such("group", group, (one for one in groups if not is_system_group(one)), str(target))
        return groups[group], await admin.members(group)

    return administer(target, to_read, found)


@with_target
def list_all(*, target: Target, every: Every = False, as_json: AsJson = False) -> None:
    """List groups with lag, dead letters, members and topics.

    The lag is the number of messages that the group has not consumed yet. Only a running broker knows the members.
    A table leaves out the groups of the system, unless --all is given.

    Nothing in STORE changes.
    """
    from tailrace.cli.listings import group_listing, group_row  # noqa: PLC0415

    show_listing("group", group_listing(target), group_row, every=every, as_json=as_json)


@with_target
def show_one(*, name: Name, target: Target, as_json: AsJson = False) -> None:
    """Show the queues and members of a group.

    For each queue: the offset and the lag of the group. Only a running broker knows the members.

    Nothing in STORE changes.
    """
    queues, members = _checked(target, name)
    lines = [{
        "topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id,
        "brokerOffset": queue.broker_offset, "consumerOffset": queue.consumer_offset, "lag": queue.lag,
        "lastTimestamp": queue.last_timestamp,
        "lastTime": local_time(queue.last_timestamp) if queue.last_timestamp > 0 else "",
    } for queue in queues]
    if not wants_table(as_json=as_json):
        print_lines({"queue": line} for line in lines)
        print_lines({"member": member} for member in members)
        return
    several = len({queue.broker_name for queue in queues}) > 1
    print_table([
        {"topic": line["topic"], "broker": line["brokerName"] if several else "", "queue": line["queueId"],
         "consumed": line["consumerOffset"], "end": line["brokerOffset"], "lag": line["lag"],
         "lastTimestamp": line["lastTimestamp"]} for line in lines],
        f"{name} has consumed nothing yet", may_hide=("lastTimestamp",))
    print_table([
        {"member": member["clientId"], "address": member["clientAddr"], "language": member["language"]}
        for member in members], "no member is connected")


@with_target
def create(
    *, name: Name, target: Target,
    retries: Annotated[Optional[int], typer.Option(  # noqa: UP045
        min=0, max=(1 << 31) - 1, help="Retries before a message becomes a dead letter; 16 for a new group.")] = None,
    enabled: Annotated[Optional[bool], typer.Option(  # noqa: UP045
        "--enable/--disable", help="Whether the group may consume.")] = None,
    in_order: Annotated[Optional[bool], typer.Option(  # noqa: UP045
        "--ordered/--unordered", help="Whether POP delivers each queue in order.")] = None,
    attribute: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
        metavar="NAME=VALUE", help="An attribute, such as lite.bind.topic=chats; may be repeated.")] = None,
    create: Create = False, as_json: AsJson = False,
) -> None:
    """Create or change a group, as mqadmin updateSubGroup.

    What no option names stays as it is. A broker with autoCreateSubscriptionGroup=true, the default, creates the group
    of a consumer by itself.

    With --create a missing STORE is created.

    This command writes to STORE.
    """
    from tailrace.cli.store_admin import to_change  # noqa: PLC0415 - NumPy and the store

    changes = {
        member: value for member, value in (
            ("retryMaxTimes", retries), ("consumeEnable", enabled), ("consumeMessageOrderly", in_order))
        if value is not None}
    attributes = {f"+{key}": value for key, value in key_values(attribute or [], "--attribute").items()}
    made = administer(
        target, partial(to_change, create=create), lambda admin: _save(admin, name, changes, attributes))
    output.show_one(made, as_json=as_json, shown={
        "group": name, "mayConsume": made["consumeEnable"], "inOrder": made["consumeMessageOrderly"],
        "retries": made["retryMaxTimes"], "attributes": made["attributes"]})


async def _save(
    admin: "Administration", name: str, changes: dict[str, Any], attributes: dict[str, str]
) -> dict[str, Any]:
    """Create a group, or change these members and attributes of it; return all members. Raises StoreError."""
    from tailrace.node.subscription_group import (  # noqa: PLC0415
        SubscriptionGroupConfig,
        merged_group_attributes,
        validate_group,
    )

    if reason := validate_group(name):
        raise StoreError(reason)
    present = await admin.group_configs()
    before = SubscriptionGroupConfig.from_json(present.get(name, {}), name).to_json()
    try:
        merged = merged_group_attributes(before["attributes"], attributes, creating=name not in present)
    except ValueError as error:
        raise StoreError(str(error)) from None
    await admin.save_group({**before, **changes, "attributes": attributes})  # changes of attributes, not all of them
    return {**before, "attributes": merged, **changes}


@with_target
def reset(
    *, name: Name,
    topic: Annotated[str, typer.Option(
        "--topic", help="Offsets of this topic.", autocompletion=completion.topics)],
    to: Annotated[
        str, typer.Option("--to", help="first, last, an offset (with --queue), or a time: 2026-01-31T12:00 or "
                          "time:MILLISECONDS since 1970.", autocompletion=completion.one_of("first", "last"))],
    queue: Annotated[Optional[int], typer.Option(min=0, help="Only this queue.")] = None,  # noqa: UP045
    target: Target, yes: Yes = False, as_json: AsJson = False,
) -> None:
    """Set the offsets of a group.

    Its members, even running ones, continue at the new offsets. A running server is needed, even for a
    directory.

    This command writes to STORE, through its server.
    """
    offset, timestamp = _place(to, queue)
    _checked(target, name)
    confirm(f"set the offsets of {name} in {topic} to {to}", yes=yes)
    done = ask(target, lambda admin: admin.reset_group(
        name, topic, timestamp_ms=timestamp, queue_id=-1 if queue is None else queue, offset=offset))
    show(({"group": name, "topic": topic, "brokerName": broker_name, "queueId": queue_id, "offset": place}
          for (broker_name, queue_id), place in sorted(done.items())), as_json=as_json)


def _place(to: str, queue: int | None) -> tuple[int | None, int]:
    """Return an offset and a time (ms); at most one is used. Time 0 means the first message, -1 the end."""
    if to in {"first", "last"}:
        return None, 0 if to == "first" else -1
    if (number := whole_number(to)) is not None:
        if queue is None:
            raise usage(f"--to {number} is an offset and needs --queue; a time is time:{number}")
        return number, 0
    try:
        return None, time_ms(to.removeprefix("time:"), "--to")
    except ValueError:
        raise usage(f"--to {to!r} is not first, last, an offset (with --queue), or a time; write a time as "
                    "2026-01-31T12:00 or time:MILLISECONDS since 1970") from None


@with_target
def delete(
    *, name: Name,
    keep_offsets: Annotated[bool, typer.Option("--keep-offsets", help="Keep the offsets of the group.")] = False,
    target: Target, yes: Yes = False, as_json: AsJson = False,
) -> None:
    """Delete a group with its offsets, its retries and its dead letters.

    Read the dead letters (topic %DLQ%GROUP) before, if they are still needed. The output names the topics that were
    deleted, and what is kept. A running server is needed, even for a directory.

    This command writes to STORE, through its server.
    """
    _checked(target, name)
    confirm(f"delete group {name}", yes=yes)
    done = ask(target, lambda admin: admin.delete_group(name, keep_offsets=keep_offsets))
    show([deleted_line(name, done)], as_json=as_json)
