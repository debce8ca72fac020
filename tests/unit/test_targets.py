"""The table of CONTRIBUTING.md names the targets that the Makefile has."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_what_runs_where_has_every_target_that_a_release_needs():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## What runs where")[1].split("\n## ")[0]
    named = set(re.findall(r"`make ([a-z-]+)`", table))
    makefile = (ROOT / "Makefile").read_text()
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    [needed] = re.findall(r"RUN_TESTS=--no-reruns (.*)", makefile)
    assert set(needed.split()) - {"audit", "docs"} <= named
