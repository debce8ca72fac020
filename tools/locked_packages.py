"""The packages that requirements/*.txt lock: names, versions and hashes."""

import re
from pathlib import Path
from typing import NamedTuple

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
_PACKAGE = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;\\]+)([^\n]*(?:\n[ \t]+--hash=[^\n]*)*)", re.MULTILINE)


class Package(NamedTuple):
    """One locked package."""

    name: str
    version: str
    hashes: frozenset


def normal(name):
    """Return a name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(path):
    """Return the packages of a file by name. Raises ValueError for one without a hash."""
    found = {}
    for name, version, rest in _PACKAGE.findall(path.read_text()):
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", rest))
        if not hashes:
            raise ValueError(f"{path.name}: {name} has no hash")
        found[normal(name)] = Package(normal(name), version, hashes)
    return found


def files():
    """Return the files of locked packages."""
    return sorted(REQUIREMENTS.glob("*.txt"))
