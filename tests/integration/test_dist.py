"""What a user gets: the wheel, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {path.stem for path in (ROOT / "src/tailrace/kernels").glob("[a-z]*.py")}
pytestmark = [pytest.mark.slow, pytest.mark.integration]


def copy_tree(tree: Path) -> None:
    """What a build needs and nothing else: what lies about here must not help."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "MANIFEST.in"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    shutil.copytree(
        ROOT / "src", tree / "src",
        ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info"))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist, and the wheel made of it, from a copy of the tree."""
    pytest.importorskip("build")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    copy_tree(tree)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree],
        capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def test_the_sdist_has_what_a_build_needs(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md", "src/tailrace/py.typed",
        "src/pyspark_tailrace/__init__.py", "src/tailrace/kernels/record.py",
    }
    assert not needed - names


def test_the_wheel_has_sources_types_and_licence_but_no_tests(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tailrace/py.typed", "tailrace/kernels/record.py", "pyspark_tailrace/__init__.py"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.split("/")[0] in {"tests", "tools", "benchmarks"}]


def test_without_a_compiler_the_wheel_is_built_all_the_same(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", tmp_path],
        env=dict(os.environ, CC="no-such-compiler"), capture_output=True, text=True, timeout=300,
        check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tailrace/kernels/record.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_the_wheel_works_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    # Dependencies are taken from this environment, so that the test needs no network; Tailrace is not.
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    [wheel] = dist.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-index", "--disable-pip-version-check", wheel], check=True, timeout=120)
    borrowed = home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # A plain directory on the path: its .pth files, and so the editable Tailrace, do not count.
    (borrowed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TAILRACE"))}

    shown = subprocess.run(
        [home / "bin" / "tailrace", "--help"], cwd=tmp_path, env=environment, capture_output=True,
        text=True, timeout=60, check=True)
    assert "serve" in shown.stdout

    code = """
import json, sys, tailrace, tailrace.kernels as k
from tailrace import Message, MessageStore
with MessageStore.open(sys.argv[1]) as store:
    store.put(Message(topic="orders", body=b"42 apples"))
    store.wait_dispatched()
    bodies = [m.body.decode() for m in store.read("orders", queue_id=0, offset=0)]
print(json.dumps([tailrace.__file__, k.compiled(), bodies]))
"""
    used = subprocess.run(
        [python, "-c", code, tmp_path / "store"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=60, check=True)
    where, compiled, bodies = json.loads(used.stdout)
    assert Path(where).is_relative_to(home)
    assert bodies == ["42 apples"]
    names = zipfile.ZipFile(wheel).namelist()
    built = {Path(name).name.split(".")[0] for name in names if "_compiled/" in name} - {"__init__"}
    if shutil.which("cc") or shutil.which("gcc"):
        assert built == KERNELS
        assert compiled
    else:
        assert not compiled
