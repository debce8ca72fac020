"""Write the bill of materials of a release (CycloneDX JSON): dist/tailrace-VERSION.cdx.json.

Its components are the locked packages of requirements/runtime.txt, which every installation has, and those of the
extras in spark.txt, lake.txt, s3.txt, sql.txt and grpc.txt, which are optional. cyclonedx-py reads names, versions and
hashes; the licences are those that the installed packages declare. The same tree gives the same file.

    python tools/sbom.py [FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

from locked_packages import REQUIREMENTS, locked

ROOT = REQUIREMENTS.parent
NEEDED, OPTIONAL = ("runtime.txt",), ("spark.txt", "lake.txt", "s3.txt", "sql.txt", "grpc.txt")
SPEC = "1.6"
_SAME = {"MIT License": "MIT", "ISC License": "ISC", "BSD": "BSD-3-Clause", "Apache License, Version 2.0": "Apache-2.0",
         "Apache 2.0": "Apache-2.0", "Apache License 2.0": "Apache-2.0", "Apache-2.0 License": "Apache-2.0"}
_CLASSIFIERS = {"MIT License": "MIT", "Apache Software License": "Apache-2.0", "BSD License": "BSD-3-Clause",
                "ISC License (ISCL)": "ISC", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
                "Python Software Foundation License": "PSF-2.0"}


def licence_of(name):
    """Return the licence that an installed package declares; raises PackageNotFoundError."""
    found = metadata.metadata(name)
    if found.get("License-Expression"):
        return found["License-Expression"]
    classifiers = [line.rpartition(" :: ")[2] for line in found.get_all("Classifier") or ()
                   if line.startswith("License ::")]
    known = [_CLASSIFIERS[one] for one in classifiers if one in _CLASSIFIERS]
    if known:
        return " OR ".join(sorted(set(known)))
    text = (found.get("License") or "").strip()
    return _SAME.get(text, text if text and "\n" not in text and len(text) < 80 else "")


def _by_tool(path):
    done = subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "requirements", "--pyproject", ROOT / "pyproject.toml", "--sv", SPEC,
         "--output-reproducible", "--of", "JSON", path], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cyclonedx-py ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def bill():
    """Return the bill of materials."""
    needed = set().union(*(locked(REQUIREMENTS / name) for name in NEEDED))
    texts, seen = [], set()
    for name in (*NEEDED, *OPTIONAL):
        packages = locked(REQUIREMENTS / name)
        for package in packages.values():
            if package.name not in seen:
                seen.add(package.name)
                hashes = " ".join(f"--hash=sha256:{one}" for one in sorted(package.hashes))
                texts.append(f"{package.name}=={package.version} {hashes}\n")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "requirements.txt")
        path.write_text("".join(sorted(texts)))
        made = _by_tool(path)
    for component in made["components"]:
        component["bom-ref"] = component["purl"]
        del component["description"]  # the line of the requirements file
        component["scope"] = "required" if component["name"] in needed else "optional"
        licence = licence_of(component["name"])
        if licence:
            component["licenses"] = [{"expression": licence, "acknowledgement": "declared"}]
    made["components"].sort(key=lambda component: component["name"])
    root = made["metadata"]["component"]
    root["bom-ref"] = f"pkg:pypi/{root['name']}@{root['version']}"
    names = [component["bom-ref"] for component in made["components"]]
    made["dependencies"] = [{"ref": root["bom-ref"], "dependsOn": names}, *({"ref": name} for name in names)]
    return made


def problem_of(text):
    """Return what the schema of CycloneDX says against a text; None if it is valid."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def main(path=None):
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    target = path or ROOT / "dist" / f"tailrace-{version}.cdx.json"
    made = bill()
    text = json.dumps(made, indent=2, sort_keys=True) + "\n"
    problem = problem_of(text)
    if problem is not None:
        sys.exit(f"the bill of materials is not valid: {problem}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    without = [one["name"] for one in made["components"] if "licenses" not in one]
    print(f"{target}: {len(made['components'])} components, {len(text)} bytes"
          + (f"; no licence declared: {', '.join(without)}" if without else ""))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", type=Path, help="the file that is written")
    sys.exit(main(parser.parse_args().path))
