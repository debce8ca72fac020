"""The Python versions that the package claims are the same everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_classifiers_wheels_and_the_release_page_name_the_same_versions():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    claimed = {found[1] for text in settings["project"]["classifiers"]
               if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", text))}
    built = {f"3.{found[1]}" for text in settings["tool"]["cibuildwheel"]["build"]
             if (found := re.fullmatch(r"cp3(\d+)-manylinux_\*", text))}
    page = (ROOT / "docs" / "contributing" / "release.md").read_text()
    rows = re.findall(r"^\| (3\.\d+)(?:\.\d+)? \| (.*)$", page, re.MULTILINE)
    tried = {version for version, row in rows if "not tried" not in row}
    assert claimed == built == tried
    assert settings["project"]["requires-python"] == ">=" + min(claimed)
