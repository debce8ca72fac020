"""Every page with commands runs as a reader types it, on a terminal and in a pipe.

A new page needs no line here: it runs in an empty folder with copies of ``deploy`` and ``examples``. A page that begins
with a store or a file has a function in ``BEFORE``. docs/contributing/pages.md has the conventions.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from page_runner import REASONS, PageRunner, blocks, commands
from releases import CLEAN

from tailrace import Message, MessageStore

ROOT = Path(__file__).resolve().parents[2]
WITH_COMMANDS = {
    path.relative_to(ROOT).as_posix(): [block for block in blocks(path.read_text()) if block.language == "console"]
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]}
PAGES = sorted(page for page, found in WITH_COMMANDS.items() if not all(block.reason for block in found))
IN_EACH_RUN = {"README.md", "docs/tutorials/first-broker.md", "docs/how-to/operate/users.md"}
"""Pages that run on a terminal in each run of the tests, the first one also in a pipe; `make long` runs all."""
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def a_java_directory(folder: Path) -> dict[str, str]:
    """Put the directory of a Java broker and its settings file at the place of /data; return what to replace."""
    data = folder / "data"
    data.mkdir()
    with tarfile.open(ROOT / f"tests/interop/fixtures/{CLEAN}.tar.xz") as archive:
        archive.extractall(data, filter="data")
    (data / CLEAN).rename(data / "store")
    page = (ROOT / "docs/how-to/migrate/move.md").read_text()
    [shown] = [block.text for block in blocks(page) if block.language == "properties"]
    # The messages are of the day on which RocketMQ wrote them.
    (data / "broker.conf").write_text(
        shown.replace("/data", str(data)) + "fileReservedTime=87600\ncleanFileForciblyEnable=false\n")
    return {"/data/": f"{data}/", "--topic orders": "--topic fx_t0"}


def a_store_with_two_queues(folder: Path) -> dict[str, str]:
    """Put messages into two queues of a topic."""
    with MessageStore.open(folder / "store") as store:
        for queue_id in (0, 2):
            store.put(Message(topic="orders", body=b"42 apples"), queue_id=queue_id)
    (folder / "broker.conf").write_text("fileReservedTime=72\n")
    return {}


BEFORE: dict[str, Callable[[Path], dict[str, str]]] = {
    "docs/how-to/migrate/move.md": a_java_directory,
    "docs/how-to/operate/disk-space.md": a_store_with_two_queues,
}


def in_each_run(page: str, terminal: bool) -> bool:
    """Return whether a page runs in each run of the tests in this form."""
    return page == "README.md" or (terminal and page in IN_EACH_RUN)


FORMS = [
    pytest.param(page, terminal, id=f"{page}-{form}", marks=() if in_each_run(page, terminal) else pytest.mark.long)
    for form, terminal in (("terminal", True), ("pipe", False)) for page in PAGES]


@pytest.mark.parametrize(("page", "terminal"), FORMS)
def test_a_page_runs_as_a_reader_types_it(tmp_path: Path, page: str, terminal: bool) -> None:
    text = (ROOT / page).read_text()
    typed = [command.text for block in blocks(text) if block.language == "console" and not block.reason
             for command in commands(block.text)]
    for program in ("openssl", "curl"):
        if any(re.search(rf"\b{program}\b", command) for command in typed) and shutil.which(program) is None:
            pytest.skip(f"the page uses {program}, which is not on the PATH")
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("deploy", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    replace = BEFORE.get(page, lambda _: {})(folder)
    with PageRunner(folder, replace=replace, terminal=terminal) as runner:
        assert runner.run(text) >= len(typed)


def test_a_block_that_is_not_run_has_a_reason_that_is_true() -> None:
    reasons = [(page, block) for page, found in WITH_COMMANDS.items() for block in found if block.reason]
    assert len(reasons) > 20
    for page, block in reasons:
        assert block.reason in REASONS, f"{page}: {block.reason} is none of {', '.join(REASONS)}"
        assert re.search(REASONS[block.reason], block.text), f"{page}: not a reason for\n{block.text}"


def test_functions_of_pages_are_of_pages_with_commands() -> None:
    assert BEFORE.keys() <= set(PAGES)
    assert len(PAGES) >= 9
