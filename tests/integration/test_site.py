"""The site of docs/ builds without a warning, shows every public name, and loads nothing from other servers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tailrace
from tailrace import client, errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers")
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        pytest.skip(f"the extra docs is not installed ({', '.join(missing)}); `make docs` installs it")
    where = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", where], cwd=ROOT, capture_output=True,
        text=True, timeout=120, check=False, env=dict(os.environ, NO_MKDOCS_2_WARNING="1"))
    assert done.returncode == 0, done.stderr
    return where


class Loads(HTMLParser):
    """The addresses that a browser fetches for a page, and the classes of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.classes |= set((values.get("class") or "").split())
        if tag in {"script", "img", "iframe", "source", "object", "embed", "video", "audio"}:
            self.found += [value for name in ("src", "data", "srcset") if (value := values.get(name))]
        elif tag == "link" and values.get("rel") not in {"canonical", "prev", "next"}:
            self.found.append(values.get("href") or "")


def test_no_page_loads_anything_from_another_server(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert not [address for address in loads.found if re.match(r"(https?:)?//", address)], page
        # The theme's script would load these two from other servers.
        assert not {"mermaid", "md-source"} & loads.classes, page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text()), sheet


def test_the_api_reference_has_every_public_name(site: Path) -> None:
    shown = "".join(page.read_text() for page in (site / "reference" / "api").glob("*.html"))
    known = set(re.findall(r'id="(tailrace[\w.]+)"', shown))
    wanted = {f"tailrace.{name}" for name in tailrace.__all__ if not name.startswith("__")}
    wanted |= {f"tailrace.errors.{name}" for name in errors.__all__}
    short = {name.rpartition(".")[2] for name in known}
    assert not {name for name in wanted if name not in known and name.rpartition(".")[2] not in short}
    assert set(client.__all__) <= short
    assert {"tailrace_broker", "TailraceBroker", "ProgressListener", "register"} <= short
