"""Requests of commands to running servers.

The target of a command is a broker, a name server, or a directory. If a server has the directory open, the
request goes to that server, whose address is in a file of the directory (the serve hint).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from tailrace.cli.contexts import Target
from tailrace.cli.problems import no_such
from tailrace.errors import RemotingCommandError, RemotingConnectError, StoreError, StoreLockedError
from tailrace.node.serve_hint import serve_hint

if TYPE_CHECKING:
    from tailrace.client.admin import AdminClient

__all__ = ["TOPIC_NOT_EXIST", "administer", "ask", "explain_default", "server_of", "topic_or_nearest"]

TOPIC_NOT_EXIST = 17
"""Response code for a topic that a server does not have."""
_Result = TypeVar("_Result")
_Admin = TypeVar("_Admin")


def administer(
    target: Target, opened: Callable[[str], AbstractContextManager[_Admin]],
    question: Callable[[AdminClient | _Admin], Awaitable[_Result]],
) -> _Result:
    """Return the result of ``question`` for a directory if no server has it open, else for the target's servers.

    ``opened`` opens a directory, and raises StoreLockedError if a server has it open. Raises StoreError.
    """
    import asyncio  # noqa: PLC0415 - help and complaints need none

    with ExitStack() as stack:
        if target.store:
            try:
                directory = stack.enter_context(opened(target.store))
            except StoreLockedError as error:
                target = Target(broker=server_of(target.store, error), tls=target.tls)
            else:
                return asyncio.run(_result(question(directory)))
        return ask(target, question)


async def _result(answer: Awaitable[_Result]) -> _Result:
    return await answer


def server_of(store: str, error: StoreLockedError) -> str:
    """Return the address of the broker that serves a locked directory. Raises ``error`` if it left no hint."""
    try:
        return str(serve_hint(store)["broker"])
    except KeyError:
        raise error from None


def ask(target: Target, question: Callable[[AdminClient], Awaitable[_Result]]) -> _Result:
    """Return the result of ``question`` for a client of the target's servers. Raises StoreError."""
    import asyncio  # noqa: PLC0415 - help and complaints need none

    from tailrace.client.admin import AdminClient  # noqa: PLC0415

    broker = target.broker
    if target.store:
        broker = serve_hint(target.store).get("broker", "")
        if not broker:
            raise StoreError(
                f"no server has {target.store} open: run tailrace serve, or name a server with --broker or --namesrv")

    async def answer() -> _Result:
        async with AdminClient(broker=broker, namesrv=target.namesrv, tls=target.tls or False) as admin:
            return await question(admin)

    with explain_default(target):
        return asyncio.run(answer())


@contextmanager
def explain_default(target: Target) -> Iterator[None]:
    """Add to connection errors why this address was used, if the command did not name a target."""
    try:
        yield
    except RemotingConnectError as error:
        if not target.chosen_by:
            raise
        raise StoreError(f"{error} (chosen by: {target.chosen_by}); name a target: STORE, --broker, --namesrv or "
                         "--context") from error


def topic_or_nearest(target: Target, topic: str, error: RemotingCommandError) -> StoreError:
    """Return the error for a topic that a server does not have, with the most similar name."""
    if error.code != TOPIC_NOT_EXIST:
        return error
    names = ask(target, lambda admin: admin.topic_names())
    return no_such("topic", topic, names, str(target))
