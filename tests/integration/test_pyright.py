"""pyright in strict mode reads programs that use the public names: those of tests/user_programs, and the examples."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MADE = ROOT / "build" / "pyright" / "node_modules" / ".bin" / "pyright"
pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def pyright() -> str:
    found = os.environ.get("PYRIGHT") or shutil.which("pyright") or (str(MADE) if MADE.exists() else None)
    if found is None:
        pytest.skip("pyright is not installed; make build/pyright gets it with npm, PYRIGHT names it elsewhere")
    return found


def said(pyright: str, path: Path) -> list[str]:
    """What pyright finds in the programs below ``path``, a line each."""
    (path / "pyrightconfig.json").write_text(json.dumps({
        "extraPaths": [str(path) for path in (ROOT / "src", *ROOT.glob("packages/*/src"))],
        "typeCheckingMode": "strict", "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": True}))
    done = subprocess.run(
        [pyright, "-p", str(path), "--pythonpath", sys.executable, "--outputjson"],
        capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode in {0, 1}, done.stdout[-2000:] + done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == len(list(path.rglob("*.py")))
    return [f"{Path(one['file']).name}:{one['range']['start']['line'] + 1} {one.get('rule')} {one['message']}"
            for one in answer["generalDiagnostics"]]


def test_programs_with_the_public_names_have_no_unknown_types(pyright: str, tmp_path: Path) -> None:
    for folder in (ROOT / "tests" / "user_programs", ROOT / "examples"):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    assert len(list(tmp_path.rglob("*.py"))) >= 6
    found = said(pyright, tmp_path)
    # Dramatiq gives its **options no type.
    assert [one for one in found if 'Type of "send_with_options" is partially unknown' not in one] == []


def test_a_wrong_program_is_found(pyright: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("from tailrace import Producer\n\nProducer(namesrv=7)\n")
    found, = said(pyright, tmp_path)
    assert found.startswith("wrong.py:3 reportArgumentType")
