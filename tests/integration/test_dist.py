"""What a user gets: the wheel, in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {path.stem for path in (ROOT / "src/tailrace/kernels").glob("[a-z]*.py")} - {"interpreted"} | {"append"}
# The check of dependencies would run setup.py, and with it Cython, once more for each build.
BUILD = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check"]
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.integration]


def copy_tree(tree: Path) -> None:
    """What a build needs and nothing else: what lies about here must not help."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE", "MANIFEST.in", "CHANGELOG.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "docs", tree / "docs")
    shutil.copytree(
        ROOT / "src", tree / "src",
        ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__", "*.egg-info"))


def borrow_c_sources(tree: Path) -> None:
    """Copy the C sources of this checkout, so that Cython does not run for a build that compiles none of them."""
    for made in ("c", "kernels"):
        if (ROOT / "build" / made).exists():
            shutil.copytree(ROOT / "build" / made, tree / "build" / made)
    future = time.time() + 86_400  # setup.py copies files again that the C sources depend on: those are newer
    for path in (tree / "build").rglob("*.c"):
        os.utime(path, (future, future))


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdist, and the wheel made of it, from a copy of the tree."""
    pytest.importorskip("build")
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    copy_tree(tree)
    borrow_c_sources(tree)  # for the sdist, which has no C sources; the wheel is made of the sdist alone
    text = (tree / "pyproject.toml").read_text()
    where = "https://example.org/tailrace"
    (tree / "pyproject.toml").write_text(text.replace(
        "[project.scripts]", f'[project.urls]\nSource = "{where}"\nChangelog = "{where}/c"\n\n[project.scripts]'))
    done = subprocess.run(
        [*BUILD, "--outdir", out, tree],
        env=dict(os.environ, TAILRACE_CFLAGS="-O0 -g0"),
        capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return out


def test_the_sdist_has_what_a_build_needs(dist: Path) -> None:
    [sdist] = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md", "src/tailrace/py.typed",
        "src/pyspark_tailrace/__init__.py", "src/tailrace/kernels/record.py", "CHANGELOG.md", "docs/index.md",
        "src/tailrace/kernels/shared/processor.pxd",
    }
    assert not needed - names
    assert not [name for name in names if name.startswith("build/") or name.endswith(".c")]


def test_the_wheel_has_sources_types_and_licence_but_no_tests(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"tailrace/py.typed", "tailrace/kernels/record.py", "pyspark_tailrace/__init__.py"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.split("/")[0] in {"tests", "tools", "benchmarks"}]


def test_without_a_compiler_the_wheel_is_built_all_the_same(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    borrow_c_sources(tmp_path)
    done = subprocess.run(
        [*BUILD, "--wheel", tmp_path],
        env=dict(os.environ, CC="no-such-compiler"), capture_output=True, text=True, timeout=300,
        check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [wheel] = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tailrace/kernels/record.py" in names
    assert not [name for name in names if name.endswith(".so")]
    assert wheel.name.endswith("-py3-none-any.whl")
    [about] = [name for name in names if name.endswith(".dist-info/WHEEL")]
    text = zipfile.ZipFile(wheel).read(about).decode()
    assert {"Root-Is-Purelib: true", "Tag: py3-none-any"} <= {*text.splitlines()}
    assert re.search(r"(\d+) of \1 kernels are not compiled", done.stderr + done.stdout)


def borrow_dependencies(site: Path) -> None:
    """Link what requirements/runtime.txt names, and nothing else, from this environment: no network, no Cython."""
    names = re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "runtime.txt").read_text(), re.MULTILINE)
    purelib = Path(sysconfig.get_path("purelib"))
    for name in names:
        for top in {Path(file).parts[0] for file in metadata.distribution(name).files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(purelib / top)


def test_the_wheel_works_in_an_empty_environment_without_a_compiler(dist: Path, tmp_path: Path) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    [wheel] = dist.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps",
         "--no-index", "--disable-pip-version-check", wheel], check=True, timeout=120)
    borrow_dependencies(home / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TAILRACE"))}
    environment["CC"] = "no-such-compiler"

    names = zipfile.ZipFile(wheel).namelist()
    built = {Path(name).name.split(".")[0] for name in names if "_compiled/" in name} - {"__init__"}
    has_compiler = bool(shutil.which("cc") or shutil.which("gcc"))
    assert built == (KERNELS if has_compiler else set())
    smoke = [python, ROOT / "tools" / "wheel_smoke.py", *(["--compiled"] if has_compiler else [])]
    done = subprocess.run(
        smoke, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    slow = subprocess.run(
        [python, "-c", "import tailrace.kernels, sys; print(tailrace.kernels.compiled(), 'cython' in sys.modules)"],
        cwd=tmp_path, env=environment | {"TAILRACE_INTERPRETED": "1"}, capture_output=True, text=True, timeout=60,
        check=True)
    assert slow.stdout.split() == ["False", "False"]


def test_what_is_in_the_wheel_is_small_and_says_where_it_comes_from(dist: Path) -> None:
    [wheel] = dist.glob("*.whl")
    archive = zipfile.ZipFile(wheel)
    [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(name).decode()
    needed = {
        line.split()[1] for line in text.splitlines() if line.startswith("Requires-Dist:") and "extra" not in line}
    assert not [one for one in needed if one.lower().startswith("cython")]
    assert "Project-URL: Changelog, https://example.org/tailrace/c" in text
    assert "](https://example.org/tailrace/blob/main/docs/index.md)" in text
    assert "](docs/" not in text
    assert all(b".symtab" not in archive.read(one) for one in archive.namelist() if one.endswith(".so"))
