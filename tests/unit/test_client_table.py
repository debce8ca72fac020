"""The table that compares our client with Java's names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = (ROOT / "docs" / "design" / "client.md").read_text()


def test_each_feature_names_a_test_that_exists_or_is_said_to_be_absent():
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in TABLE.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in row] for row in rows if row[0].strip() != "Java client"]
    assert len(rows) > 50
    known = {}
    for feature, ours, test in rows:
        if ours.startswith("-"):
            assert not test, feature
            continue
        path, name = re.fullmatch(r"`([\w/.]+)::(\w+)`", test).groups()
        if path not in known:
            tree = ast.parse((ROOT / path).read_text())
            known[path] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in known[path], feature
