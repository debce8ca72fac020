"""Completion of topics, groups, addresses, contexts, settings and store directories in a shell.

The names come from the target that the line names so far, as the command itself would choose it. A server has a
second to answer. Whatever goes wrong, the shell gets no name and no text of an error.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from tailrace.cli.contexts import Target
    from tailrace.client.admin import AdminClient

__all__ = [
    "addresses", "complete_in_bash", "contexts", "groups", "name_servers", "one_of", "places", "settings", "stores",
    "topics", "words_of_groups", "words_of_topics",
]

_TIMEOUT_S: Final = 1.0
_VARIABLE: Final = "_TAILRACE_COMPLETE"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_%.:/@~+=,-]+", re.ASCII)
"""Names that no shell splits, expands or runs. Zsh evaluates its answer, and a store or server may be hostile."""
Completer = Callable[[typer.Context, str], list[str]]


def _completer(find: Callable[[typer.Context, str], Iterable[str]]) -> Completer:
    """Return a completer that gives no name if ``find`` fails, and lets it print nothing."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        with contextlib.redirect_stderr(io.StringIO()):
            return sorted({name for name in _quiet(find, ctx, incomplete)
                           if name.startswith(incomplete) and _PLAIN.fullmatch(name)})

    return complete


def _target(ctx: typer.Context) -> "Target":
    """Return the target of the line so far. Its first argument is a directory, or the target is a server."""
    from tailrace.cli.contexts import target_of  # noqa: PLC0415 - it imports this module, through the arguments

    given = ctx.params
    # The arguments are in ctx.args if the line ends in an option that has no value yet.
    words = [word for word in (*(given.get("words") or ()), str(given.get("store") or ""), *ctx.args) if word]
    directory = words[:1] if words and Path(words[0]).is_dir() else []
    return target_of(
        directory, given.get("broker") or "", given.get("namesrv") or "", given.get("context") or "",
        tls=given.get("tls"))


def _ask(target: "Target", question: "Callable[[AdminClient], Awaitable[Iterable[str]]]") -> Iterable[str]:
    import asyncio  # noqa: PLC0415 - every command loads this module

    from tailrace.client.admin import AdminClient  # noqa: PLC0415

    async def answer() -> Iterable[str]:
        async with AdminClient(
            broker=target.broker, namesrv=target.namesrv, tls=target.tls or False, timeout_ms=int(_TIMEOUT_S * 1000)
        ) as admin:
            return await question(admin)

    return asyncio.run(asyncio.wait_for(answer(), _TIMEOUT_S))


def _topics(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.config import BrokerConfig  # noqa: PLC0415
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.env.filesystem import OsFileSystem  # noqa: PLC0415
    from tailrace.formats.filenames import CONFIG  # noqa: PLC0415
    from tailrace.formats.names import RETRY_GROUP_TOPIC_PREFIX  # noqa: PLC0415
    from tailrace.node.topic_config import TopicConfigManager  # noqa: PLC0415

    target = _target(ctx)
    known = TopicConfigManager(OsFileSystem(), f"{target.store}/{CONFIG}", BrokerConfig(), SystemClock())
    if target.store:
        known.load()
        names = [one.topic_name for one in known.items()]
    else:
        names = [*_ask(target, lambda admin: admin.topic_names())]
    own = [name for name in names if not known.is_system_topic(name) and not name.startswith(RETRY_GROUP_TOPIC_PREFIX)]
    return own if any(name.startswith(incomplete) for name in own) else names


def _groups(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.config import BrokerConfig  # noqa: PLC0415
    from tailrace.env.clock import SystemClock  # noqa: PLC0415
    from tailrace.env.filesystem import OsFileSystem  # noqa: PLC0415
    from tailrace.formats.filenames import CONFIG  # noqa: PLC0415
    from tailrace.node.consumer_offset import ConsumerOffsetManager  # noqa: PLC0415
    from tailrace.node.subscription_group import SubscriptionGroupManager, is_system_group  # noqa: PLC0415

    target = _target(ctx)
    if target.store:
        config = f"{target.store}/{CONFIG}"
        groups = SubscriptionGroupManager(OsFileSystem(), config, BrokerConfig(), SystemClock())
        groups.load()
        offsets = ConsumerOffsetManager.of_stopped(OsFileSystem(), config, SystemClock())
        offsets.load()
        names = [*(one.group_name for one in groups.items()), *(entry[1] for entry in offsets.entries())]
    else:
        names = [*_ask(target, lambda admin: admin.group_configs())]
    own = [name for name in names if not is_system_group(name)]
    return own if any(name.startswith(incomplete) for name in own) else names


def _directories(incomplete: str, *, all_kinds: bool = True) -> list[str]:
    """Return the stores that begin so; without one the directories, but not a single one, which the shell completes."""
    from tailrace.formats.filenames import COMMITLOG  # noqa: PLC0415

    folder, separator, start = incomplete.rpartition("/")
    shown = folder + separator
    found = [
        f"{shown}{path.name}" for path in Path(os.path.expanduser(shown) or ".").iterdir()
        if path.name.startswith(start) and (start or not path.name.startswith(".")) and path.is_dir()]
    stores = [name for name in found if (Path(os.path.expanduser(name)) / COMMITLOG).is_dir()]
    return stores or (found if all_kinds and len(found) > 1 else [])


def _words(names: Callable[[typer.Context, str], Iterable[str]]) -> Completer:
    """Return the completer of ``[STORE] NAME``: a directory or a name first, then a name."""

    def find(ctx: typer.Context, incomplete: str) -> Iterable[str]:
        found = _quiet(names, ctx, incomplete) if "/" not in incomplete else []
        return found if ctx.params.get("words") else [*found, *_directories(incomplete, all_kinds=not found)]

    return _completer(find)


def _quiet(names: Callable[[typer.Context, str], Iterable[str]], ctx: typer.Context, incomplete: str) -> list[str]:
    try:
        return [*names(ctx, incomplete)]
    except (Exception, SystemExit):  # noqa: BLE001 - a shell at its prompt is no place for an error
        return []


def _of_contexts(kind: str) -> list[str]:
    from tailrace.cli.contexts import contexts_of_file  # noqa: PLC0415

    return [str(values[kind]) for values in contexts_of_file()[1].values() if kind in values]


def _addresses(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.cli.contexts import target_of  # noqa: PLC0415

    brokers = _quiet(lambda *_: _ask(target_of([]), lambda admin: admin.brokers()), ctx, incomplete)
    return [*_of_contexts("broker"), *brokers]


def _name_servers(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.cli.contexts import target_of  # noqa: PLC0415

    return [*_of_contexts("namesrv"), os.environ.get("NAMESRV_ADDR", ""), target_of([]).namesrv]


def _contexts(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.cli.contexts import contexts_of_file  # noqa: PLC0415

    return contexts_of_file()[1]


def _settings(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    from tailrace.java_settings import known_settings  # noqa: PLC0415

    return (f"{name}=" for name in known_settings())


def one_of(*names: str) -> Completer:
    """Return a completer for fixed names."""
    return _completer(lambda ctx, incomplete: names)


topics: Final = _completer(_topics)
groups: Final = _completer(_groups)
words_of_topics: Final = _words(_topics)
words_of_groups: Final = _words(_groups)
stores: Final = _completer(lambda ctx, incomplete: _directories(incomplete))
places: Final = _words(lambda ctx, incomplete: [])
addresses: Final = _completer(_addresses)
name_servers: Final = _completer(_name_servers)
contexts: Final = _completer(_contexts)
settings: Final = _completer(_settings)


def complete_in_bash(run: Callable[[], Any]) -> bool:
    """Serve a completion of bash by ``run``; return False if the shell asks for none.

    Bash takes ``:`` and ``=`` for words of their own, so HOST:PORT is three of them. They are joined before ``run``
    looks at them, and what precedes the last of them is cut off the answers, because bash keeps it.
    """
    text = os.environ.get("COMP_WORDS", "")
    if os.environ.get(_VARIABLE) != "complete_bash" or "\n" not in text:
        return False
    words, places_, cut = list[str](), list[int](), ""
    for word in text.split("\n"):
        joins = words and (word in {":", "="} or (words[-1][-1:] in {":", "="}))
        if joins:
            words[-1] += word
        else:
            words.append(word)
        places_.append(len(words) - 1)
    number = int(os.environ.get("COMP_CWORD", "0"))
    place = places_[number] if number < len(places_) else len(words)
    if place < len(words) and (found := re.match(r"(.*[:=])", words[place])):
        cut = found[1]
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(words), str(place)
    answer = io.StringIO()
    try:
        with contextlib.redirect_stdout(answer):
            run()
    finally:
        sys.stdout.write("".join(f"{line.removeprefix(cut)}\n" for line in answer.getvalue().splitlines()))
    return True
