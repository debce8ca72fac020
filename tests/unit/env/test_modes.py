"""Modes of files and directories on a real disk, whatever the umask is."""

from __future__ import annotations

import ast
import os
import re
import stat
from pathlib import Path

import pytest

import tailrace
from tailrace.config import StoreConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.env.permissions import readers_of, share_with_group
from tailrace.env.whole_files import open_new, replace_file, write_file
from tailrace.node.message_store import MessageStore

SOURCE = Path(tailrace.__file__).parent
MAKES_FILES_ELSEWHERE = {
    "cli/__init__.py", "cli/app.py", "cli/serve.py",  # the null device
    "cli/doctor.py",  # a report: a new file that only its user can read
    "pytest_plugin.py", "spark/session.py",  # settings and programs of a test or session, in temporary directories
}
"""Modules outside env/ that open or make files by themselves."""


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids="umask {:03o}".format)
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.fixture
def files(umask):
    return OsFileSystem()


def test_only_the_owner_reads_what_is_made(files, tmp_path):
    place = f"{tmp_path}/a/b"
    files.makedirs(place)
    files.open(f"{place}/plain", writable=True, create=True).close()
    open_new(files, f"{place}/new").close()
    write_file(files, f"{place}/written", b"x")
    replace_file(files, f"{place}/replaced", b"x")
    lock = files.lock(f"{place}/lock")
    os.remove(f"{place}/lock")
    lock.check()
    lock.release()
    assert {mode_of(f"{tmp_path}/a"), mode_of(place)} == {0o700}
    assert {name: mode_of(f"{place}/{name}") for name in os.listdir(place)} == dict.fromkeys(
        ("plain", "new", "written", "replaced", "lock"), 0o600)


def test_the_group_reads_what_is_made_in_a_directory_that_is_shared_with_it(files, tmp_path):
    place = f"{tmp_path}/shared"
    files.makedirs(place)
    share_with_group(place)
    files.makedirs(f"{place}/a/b")
    for name in ("top", "a/b/deep"):
        files.open(f"{place}/{name}", writable=True, create=True).close()
        files.open(f"{place}/{name}", writable=True, create=True).close()  # it exists
        with pytest.raises(FileExistsError):
            files.open(f"{place}/{name}", writable=True, create=True, exclusive=True)
    files.lock(f"{place}/lock").release()
    assert {mode_of(f"{place}/{name}") for name in ("", "a", "a/b")} == {0o2750}
    assert {mode_of(f"{place}/{name}") for name in ("top", "a/b/deep", "lock")} == {0o640}


def test_a_store_in_a_directory_that_is_shared_is_private_unless_its_setting_says_so(files, tmp_path):
    place = f"{tmp_path}/volume"
    files.makedirs(place)
    share_with_group(place)
    for name, shared in (("private", False), ("shared", True)):
        with MessageStore.open(f"{place}/{name}", config=StoreConfig(store_group_readable=shared)):
            pass
        made = [f"{path}/{one}" for path, _, names in os.walk(f"{place}/{name}") for one in names]
        assert mode_of(f"{place}/{name}") == (0o2750 if shared else 0o700)
        assert {mode_of(path) for path in made} == {0o640 if shared else 0o600}


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o2700, 0o700])
def test_a_directory_that_was_there_stays_as_it_is_and_new_files_are_private(files, tmp_path, mode):
    os.mkdir(f"{tmp_path}/there")
    os.chmod(f"{tmp_path}/there", mode)
    Path(f"{tmp_path}/there/old").touch()
    os.chmod(f"{tmp_path}/there/old", 0o644)
    files.makedirs(f"{tmp_path}/there")
    files.makedirs(f"{tmp_path}/there/below")
    files.open(f"{tmp_path}/there/old", writable=True, create=True).close()
    files.open(f"{tmp_path}/there/new", writable=True, create=True).close()
    assert mode_of(f"{tmp_path}/there") == mode
    assert mode_of(f"{tmp_path}/there/old") == 0o644, "a file that exists is not changed"
    assert mode_of(f"{tmp_path}/there/below") & 0o777 == 0o700
    assert mode_of(f"{tmp_path}/there/new") == 0o600


def test_a_replaced_file_is_private_although_the_old_one_was_not(files, tmp_path):
    path = f"{tmp_path}/file"
    Path(path).touch()
    os.chmod(path, 0o644)
    replace_file(files, path, b"new")
    assert mode_of(path) == 0o600
    os.chmod(path, 0o640)
    replace_file(files, path, b"new", keep_permissions=True)
    assert mode_of(path) == 0o640


@pytest.mark.parametrize(("mode", "who"), [
    (0o600, ""), (0o640, "its group"), (0o644, "every user"), (0o604, "every user"), (0o620, "")])
def test_who_else_may_read(tmp_path, mode, who):
    path = f"{tmp_path}/file"
    Path(path).touch()
    os.chmod(path, mode)
    assert readers_of(path) == who


MAKES = {"write_bytes", "write_text", "mkdtemp", "mkstemp", "mkdir", "copyfile", "copytree", "copy2", "symlink_to"}
OS_MAKES = {"os.open", "os.mkdir", "os.makedirs", "os.mknod", "os.link", "os.symlink"}
MAY_MAKE = re.compile(rf"\.(?:{'|'.join(MAKES)})\(|(?:{'|'.join(map(re.escape, OS_MAKES))})\(")


def test_no_other_room_makes_files():
    found = set()
    for path in SOURCE.rglob("*.py"):
        name, text = str(path.relative_to(SOURCE)), path.read_text()
        if name.startswith("env/") or not MAY_MAKE.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
                node.func.attr in MAKES or ast.unparse(node.func) in OS_MAKES
            ):
                found.add(name)
    assert found == MAKES_FILES_ELSEWHERE
