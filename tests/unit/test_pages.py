"""Pages that list log lines, metrics, settings or figures are complete and right; the page runner finds differences."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from page_runner import Block, Command, PageRunner, agrees, blocks, commands, same_values
from page_shell import rendered

from tailrace.auth_settings import AuthConfig
from tailrace.cli.serve_settings import take_settings
from tailrace.config import (
    BrokerConfig,
    NameServerConfig,
    StoreConfig,
    option_name,
)
from tailrace.metrics import METRICS
from tailrace.properties import parse_properties
from tailrace.tls_settings import TLS_NAMES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def quoted(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def alert_sections(page: str) -> dict[str, list[str]]:
    """Return the parts in bold of each section of the runbook that has the name of an alert."""
    parts = re.split(r"^##+ (.+)$", page, flags=re.MULTILINE)[1:]
    return {name: re.findall(r"^- \*\*(\w+):\*\*", text, re.MULTILINE)
            for name, text in zip(parts[::2], parts[1::2], strict=True) if re.fullmatch(r"Tailrace\w+", name)}


def test_each_alert_has_a_section_of_the_runbook_and_a_place_in_the_page_about_monitoring() -> None:
    """`tests/unit/deploy` checks the rules themselves."""
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    sections = alert_sections((DOCS / "how-to" / "operate" / "runbook.md").read_text())
    assert len(alerts) > 12
    assert set(sections) == alerts
    assert {name: parts for name, parts in sections.items() if parts != ["Symptom", "Check", "Action", "Over"]} == {}
    monitor = (DOCS / "how-to" / "operate" / "monitor.md").read_text().partition("## Alerts")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"\bTailrace[A-Z]\w+", monitor)) == sorted(alerts)


def test_metrics_of_the_pages_for_operators_exist() -> None:
    known = {name for metric in METRICS for name in (metric.exposed, f"{metric.exposed}_bucket")}
    for page in ("monitor.md", "runbook.md", "size.md"):
        text = (DOCS / "how-to" / "operate" / page).read_text()
        text = re.sub(r"Tailrace has no `rocketmq_.*?RocksDB\.", "", text, flags=re.DOTALL)
        assert set(re.findall(r"\b(?:tailrace|rocketmq)_[a-z_]+[a-z]\b", text)) - known == set(), page


def test_settings_by_task_are_settings() -> None:
    page = (DOCS / "how-to" / "operate" / "configure.md").read_text()
    known = {option_name(field) for config in (StoreConfig, BrokerConfig, NameServerConfig, AuthConfig)
             for field in dataclasses.fields(config)} | TLS_NAMES
    for block in blocks(page):
        if block.language == "properties":
            values = parse_properties(block.text)
            assert values
            assert set(values) <= known
            take_settings(values)
    for found in quoted(page):
        name, equals, _ = found.partition("=")
        if equals and re.fullmatch(r"[a-z]+[A-Z]\w+", name):
            assert name in known, found


def figures(text: str) -> list[str]:
    """Return the numbers of a text that may be measured: those with a comma, a point or three digits."""
    return re.findall(r"(?<![\w.,-])\d+(?:[.,]\d+)+(?![\w-])|(?<![\w.,-])\d{3,}(?![\w.,-])", text)


def test_figures_of_a_text() -> None:
    assert figures("30,181 and 26.2 of 2, 295 ms, 5.5.0, C17, 0.62 to 3.5.") == [
        "30,181", "26.2", "295", "5.5.0", "0.62", "3.5"]


def measured() -> set[str]:
    """Return every figure of the benchmark log, and of the results with a comma between thousands."""
    found = set(figures((DOCS / "contributing" / "benchmark-log.md").read_text()))
    for path in (ROOT / "benchmarks" / "results").glob("*.jsonl"):
        found |= {f"{int(n):,}" if n.isdecimal() else n for n in re.findall(r"(?<=: )[\d.]+", path.read_text())}
    return found


def test_figures_of_performance_were_measured() -> None:
    """A figure of a table or list of the page, or of the README's section about speed, is in the log or the results."""
    page = (DOCS / "explanation" / "performance.md").read_text()
    readme = (ROOT / "README.md").read_text().partition("## Speed")[2].partition("\n## ")[0]
    parts = re.findall(r"^(?:\||- |  \S).*$", page, re.MULTILINE)
    assert len(parts) > 30
    shown = [*figures("\n".join(parts)), *figures(readme)]
    assert len(shown) > 45
    assert not sorted(set(shown) - measured() - {"1,024", "5.5.0"})


@pytest.mark.parametrize("path", ["README.md", "docs/start/why.md", "docs/explanation/performance.md"])
def test_no_page_compares_with_a_jvm_that_was_not_warm(path: str) -> None:
    """The put and the read of RocketMQ in one round, and what was computed from them."""
    text = (ROOT / path).read_text()
    assert not [cold for cold in ("106,543", "2,036,163", "4,111,823", "588", "611") if cold in text]


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a document, as a site makes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def test_links_to_headings_lead_to_one() -> None:
    """`make docs` also finds dead links; this needs no package."""
    assert anchors("# RocketMQ's names\n```\n# no\n```\n## 4. Serve `it`\n") == {"rocketmqs-names", "4-serve-it"}
    dead = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", path.read_text()):
            if "://" not in target and anchor not in anchors((path.parent / target if target else path).read_text()):
                dead.append(f"{path}: {target}#{anchor}")
    assert not dead


TYPED = re.compile(
    r"(\$ |(tailrace|pip|curl|mqadmin|make|python3?|systemctl|podman|docker|kubectl|sudo|export|chmod|source) )")


def commands_elsewhere(page: str) -> list[str]:
    """Return the first line of each block of commands that is not a block ``console``."""
    marked = re.sub(r"^( *)```console\n.*?^\1```$", "", page, flags=re.MULTILINE | re.DOTALL)
    shown = r"^( *)```(?:json|text|yaml|python|properties|toml|java|js)\n.*?^\1```$"
    rest = re.sub(shown, "", marked, flags=re.MULTILINE | re.DOTALL)
    starts = re.findall(r"^ *```\w*\n(?=(.*)$)", rest, re.MULTILINE) + re.findall(r"\n\n    (\S.*)", rest)
    return [line for line in starts if TYPED.match(line)]


def test_commands_are_in_blocks_that_are_run() -> None:
    """docs/contributing/pages.md; the README has 120 lines, and its installation is that of docs/start/install.md."""
    page = "a\n\n    pip install .\n\n```\n$ b\n```\n```sh\nmake c\n```\n```console\n$ d\n```\n"
    assert commands_elsewhere(page) == [
        "$ b", "make c", "pip install ."]
    pages = [ROOT / "SECURITY.md", *(ROOT / "examples").rglob("*.md"), *DOCS.rglob("*.md")]
    found = {path.relative_to(ROOT).as_posix(): lines for path in pages
             if (lines := commands_elsewhere(path.read_text())) and "contributing" not in path.parts}
    assert found.keys() <= {"docs/reference/cli.md"}, found


def test_no_text_installs_the_package_from_an_index() -> None:
    """No version is released: the name may belong to another package. docs/start/install.md says what to do."""
    files = [ROOT / "README.md", *(ROOT / "examples").rglob("*.md"), *(ROOT / "docs").rglob("*.md"),
             *(ROOT / "docs" / "examples").glob("*.py"), *(ROOT / "src").rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix() for path in files
             if re.search(r"pip install ['\"]?tailrace\b", path.read_text())}
    assert found <= {"docs/contributing/release.md"}


def swallowed_lists(text: str) -> list[str]:
    """Return the first line of each list that has no blank line before it: a site shows it as a paragraph."""
    found, before, fenced = [], [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced, before = not fenced, [line]
        elif not fenced:
            item = re.match(r"(- |\d+\. )", line)
            if item and before and not any(re.match(r"(- |\d+\. )", other) for other in before):
                found.append(line)
            before = [*before, line] if line.strip() else []
    return found


def test_lists_are_lists() -> None:
    assert swallowed_lists("a\n- b\n") == ["- b"]
    assert swallowed_lists("```\na\n```\n1. b\n") == ["1. b"]
    assert swallowed_lists("a\n\n- b\n  c\n- d\n\n```\n- e\n```\n") == []
    assert not {str(path): found for path in (ROOT / "docs").rglob("*.md")
                if (found := swallowed_lists(path.read_text()))}


def pictures():
    spec = importlib.util.spec_from_file_location("gen_pictures", ROOT / "tools" / "gen_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_are_current_and_say_what_they_show() -> None:
    drawing, found = pictures(), sorted((ROOT / "docs" / "pictures").glob("*.toml"))
    assert len(found) >= 4
    for path in found:
        drawn, problems = drawing.draw(tomllib.loads(path.read_text()), path.name)
        assert problems == []
        assert path.with_suffix(".svg").read_text() == drawn
        assert "prefers-color-scheme: dark" in drawn
        assert re.search(r'role="img" aria-labelledby="title description">\n  <title id="title">.+</title>\n'
                         r'  <desc id="description">.{100,}</desc>', drawn)
        assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?(?!#)\w", drawn)


def test_pictures_of_the_users_pages_are_readable_on_a_phone() -> None:
    """At 358 pixels, what a phone of 390 leaves, the smallest text (11.5 in our own drawings) keeps at least 9."""
    pages = [path for path in DOCS.rglob("*.md") if "contributing" not in path.parts]
    found = {name for path in pages for name in re.findall(r"/?pictures/([\w-]+)\.svg\)", path.read_text())}
    assert found >= {"architecture", "life-of-a-message"}
    for name in found:
        source, svg = DOCS / "pictures" / f"{name}.toml", (DOCS / "pictures" / f"{name}.svg").read_text()
        if source.exists():
            width, smallest = tomllib.loads(source.read_text())["size"][0], 11.5
        else:  # drawn by a library
            width = float(re.search(r'viewBox="0 0 ([\d.]+) ', svg)[1])
            smallest = min(map(float, re.findall(r"font(?:-size)?: ([\d.]+)px", svg)))
        assert smallest * 358 / width >= 9, f"{name} is {width} wide, with text of {smallest}"


@pytest.mark.parametrize(("box", "problem"), [
    ({"text": ["a text that is far too wide for its box"]}, "is too wide"),
    ({"text": ["a", "b", "c"]}, "3 lines are too high"),
    ({"at": [80, 0]}, "leaves the picture"),
    ({"at": [20, 10]}, "overlaps"),
])
def test_a_drawing_that_does_not_fit_is_refused(box: dict, problem: str) -> None:
    good = {"name": "a", "at": [0, 0], "size": [50, 30], "kind": "code", "text": ["a"]}
    source = {
        "title": "t", "description": "d", "size": [100, 60],
        "box": [good, {**good, "name": "b", "at": [50, 30], **box}], "arrow": [{"from": "a", "to": "b"}]}
    assert any(problem in found for found in pictures().draw(source, "x")[1])


def test_blocks_of_a_page_with_the_reasons_not_to_run_them() -> None:
    page = ("<!-- not run: root -->\n```console\n$ a\n```\n\n1. In a list:\n\n   ```console\n   $ b\n   ```\n"
            "<!-- not run: systemd -->\n\n```sh\nc\n```\n")
    assert blocks(page) == [
        Block("console", "$ a\n", "root"), Block("console", "$ b\n"), Block("sh", "c\n", "systemd")]


@pytest.mark.parametrize(("table", "lines", "same"), [
    ("topic   queue id  purged\norders         2   1,000", '{"topic":"orders","queueId":2,"purged":1000}', True),
    ("topic   queue id  purged\norders         3   1,000", '{"topic":"orders","queueId":2,"purged":1000}', False),
    ("topic   queue  purged\norders      2   1", '{"topic":"order","queue":2,"purged":1}', False),
    ("2026-11-26 19:03:04.676  0:0  tags=new\n...", '{"queueId":0,"queueOffset":0,"properties":{"TAGS":"new"}}', True),
    ("CLUSTER=Defa\nultCluster", '{"properties":{"CLUSTER":"DefaultCluster"}}', True),
    ("done", "done", False), ("", "", False), ("orders", '{"topic":"orders"', False),
])
def test_a_table_has_the_values_of_the_lines_in_a_pipe(table, lines, same) -> None:
    assert same_values(table, lines) is same


@pytest.mark.parametrize(("written", "seen"), [
    ("a\n\x1b[1mb\x1b[0m\n", "a\nb\n"), ("10 %\r20 %\n", "20 %\n"), ("long\rab", "abng"),
    ("\x1b[?25lverify 0%\n\x1b[1A\x1b[2K\x1b[?25hdone\n", "done\n"), ("ab\r\x1b[Kc", "c"), ("", ""),
])
def test_a_terminal_shows_what_is_left_of_a_progress_bar(written, seen) -> None:
    assert rendered(written) == seen


@pytest.mark.parametrize("terminal", [True, False])
def test_a_page_runs_in_one_shell(tmp_path, terminal) -> None:
    (tmp_path / "page").mkdir()
    lines = [
        "```console", "$ mkdir sub && cd sub && name=apples", "```", "", "```console",
        "$ basename $PWD; echo 42 $name >&2", "sub", "42 apples", "$ sleep 99 & kept=$!",
        "$ kill -0 $kept && kill $kept",
        *(["$ stty size | cut -d' ' -f2", "80"] if terminal else []), "```", "```python", "import os, sys",
        "print(os.path.basename(os.getcwd()), sys.stdout.isatty())", "```", "```text", f"sub {terminal}", "```",
        "<!-- not run: root -->", "```console", "$ false && rm x", "no", "```", ""]
    page = "\n".join(lines)
    with PageRunner(tmp_path / "page", terminal=terminal) as runner:
        assert runner.run(page) == (6 if terminal else 5)
        with pytest.raises(AssertionError, match="and printed"):
            runner.run("```console\n$ echo $name\npears\n```\n")


def test_commands_of_a_block_and_what_they_print() -> None:
    assert commands("$ cat > f <<'END'\na=1\n$ no\nEND\n$ b \\\n  c\nprinted\nmore\n$ d\n") == [
        Command("cat > f <<'END'\na=1\n$ no\nEND", ""), Command("b \\\n  c", "printed\nmore"), Command("d", "")]


@pytest.mark.parametrize(("shown", "printed", "same"), [
    ("a 1\nb", "a 1\nb\n", True), ("a 1", "a 2", False), ("a ... c", "a b c", True), ("a\n...", "a\nb\nc", True),
    ("a\n...\nd", "a\nb\nc\nd", True), ("a\n...", "a", True), ("a\n...", "b", False), ("", "", True),
    ("", "Traceback", False), ("a.c", "abc", False), ("at 127.0.0.1:9876", "at 127.0.0.1:40123", True),
    ("ms=12 x", "ms=0 x", True), ("count=12", "count=13", False), ("1795417523311", "1700000000000", True),
])
def test_what_a_page_shows_is_compared(shown: str, printed: str, same: bool) -> None:
    assert agrees(shown, printed) is same


def test_a_line_that_a_terminal_has_in_two_is_one_in_a_pipe(tmp_path):
    shown = "disk: 36 % used; expired files go at any hour above 75 %, the\n  oldest files above 85 %\n"
    printed = "disk: 52 % used; expired files go at any hour above 75 %, the oldest files above 85 %\n"
    for terminal in (True, False):
        with PageRunner(tmp_path, terminal=terminal) as page:
            assert page._shows(Command("echo", shown), printed) is not terminal
            assert not page._shows(Command("echo", shown), printed.replace("oldest", "newest"))
