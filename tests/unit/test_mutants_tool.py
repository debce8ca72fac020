"""Faults that tools/mutants.py plants: one place each, never a log line or an assertion."""

import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = '''
def pick(a: int, b: int = 3) -> int:
    assert a < b
    events.SUM.log(_log, a=a + 1)
    if not a and b == 2:
        note(b)
    return min(a, b) + (7 if a in (b,) else False)
'''


def loaded():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tools" / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module
    spec.loader.exec_module(module)
    return module


def changed(before, after):
    return [line[1:].strip() for line in difflib.ndiff(before.splitlines(), after.splitlines())
            if line.startswith("+ ")]


def test_every_fault_changes_one_line_of_the_code(tmp_path):
    path = tmp_path / "code.py"
    path.write_text(SOURCE)
    faults = loaded().faults_of(path)
    lines = [changed(SOURCE, fault.text) for fault in faults]
    assert all(len(line) == 1 for line in lines)
    assert {fault.line for fault in faults} == {2, 5, 6, 7}, "no assertion, no log line"
    assert {line for line, in lines} >= {
        "def pick(a: int, b: int = 4) -> int:", "if (not a or b == 2):", "if (a) and b == 2:",
        "if not a and (b != 2):", "if not a and b == 3:", "None", "if (not (not a and b == 2)):",
        "return (max(a, b)) + (7 if a in (b,) else False)", "return min(a, b) + (7 if a in (b,) else True)",
        "return min(a, b) + (7 if (a not in (b,)) else False)",
        "return min(a, b) + (7 if (not (a in (b,))) else False)"}
    assert path.read_text() == SOURCE


def test_a_fault_behind_letters_of_many_bytes_is_in_its_place(tmp_path):
    path = tmp_path / "code.py"
    path.write_text("x = 'Grüße, 世界'; y = 1 + 2\n")
    assert {fault.text for fault in loaded().faults_of(path)} == {
        f"x = 'Grüße, 世界'; y = {changed}\n" for changed in ("(1 - 2)", "2 + 2", "1 + 3")}


def test_without_coverage_the_tool_says_how_to_get_it():
    code = (
        "import importlib.util, runpy, sys; real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'coverage' else real(name, *more)\n"
        f"runpy.run_path({str(ROOT / 'tools' / 'mutants.py')!r}, run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "mutants: the package coverage is missing; run .venv/bin/pip install coverage")
