"""Look for known vulnerabilities in every package that requirements/*.txt lock.

pip-audit asks for the advisories of the package index (SERVICE=osv: those of OSV). Without access to them, the tool
reports it and ends with 3, because a package that was not looked up may have vulnerabilities. ADVISORIES=FILE uses a
local copy of OSV's database instead, the file all.zip of its ecosystem PyPI, and needs no network. IGNORE=ID,ID leaves
out advisories that do not apply. Ends with 0 if every package was looked up and nothing was found, with 1 for a
finding.

    python tools/audit.py
    ADVISORIES=all.zip python tools/audit.py
"""

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from locked_packages import files, locked, normal
from packaging.version import InvalidVersion, Version

NOT_LOOKED_UP = 3
AUDIT = [sys.executable, "-m", "pip_audit"]


def all_packages():
    """Return (name, version) of each locked package, and the files that lock it."""
    found = {}
    for path in files():
        for package in locked(path).values():
            found.setdefault((package.name, package.version), []).append(path.name)
    return found


# --- the service


def ask_service(packages, service):
    """Return the findings by package, and the packages that were not looked up with the reason."""
    findings, looked_up, reasons = {}, set(), {}
    for path in files():
        done = subprocess.run(
            [*AUDIT, "--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json",
             "--vulnerability-service", service, "--requirement", str(path)],
            capture_output=True, text=True, timeout=900, check=False)
        try:
            answer = json.loads(done.stdout)["dependencies"]
        except ValueError:
            reason = (done.stderr.strip() or "pip-audit printed nothing").splitlines()[-1][:200]
            return findings, {one: reason for one in packages if one not in looked_up}
        for package in answer:
            name = normal(package["name"])
            if "skip_reason" in package:
                reasons[name] = package["skip_reason"]
                continue
            one = name, package["version"]
            looked_up.add(one)
            for found in package["vulns"]:
                line = found["id"], ", ".join(found.get("fix_versions") or ())
                if line not in findings.setdefault(one, []):
                    findings[one].append(line)
    return findings, {
        one: reasons.get(one[0], "pip-audit did not report it") for one in packages if one not in looked_up}


# --- a local copy of the database


def ask_copy(packages, path):
    """Return the findings by package from a copy of OSV's database, and the time of its newest advisory."""
    by_name = {}
    for name, version in packages:
        by_name.setdefault(name, []).append(version)
    findings, newest, count = {}, "", 0
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not member.endswith(".json"):
                continue
            advisory = json.loads(archive.read(member))
            count += 1
            newest = max(newest, advisory.get("modified", ""))
            for affected in () if advisory.get("withdrawn") else advisory.get("affected", ()):
                package = affected.get("package", {})
                if package.get("ecosystem") != "PyPI":
                    continue
                for version in by_name.get(normal(package.get("name", "")), ()):
                    if is_affected(version, affected):
                        findings.setdefault((normal(package["name"]), version), []).append(
                            (advisory["id"], ", ".join(_fixed(affected))))
    if not count:
        raise ValueError(f"{path} has no advisories")
    return findings, newest


def is_affected(version, affected):
    """Return whether a version is in the list or in a range of an advisory."""
    if version in affected.get("versions", ()):
        return True
    return any(_in_range(Version(version), one.get("events", ())) for one in affected.get("ranges", ())
               if one.get("type") == "ECOSYSTEM")


def _in_range(version, events):
    inside = False
    for event in sorted(events, key=_place):
        for kind, text in event.items():
            try:
                limit = Version(text)
            except InvalidVersion:
                continue
            if kind == "introduced" and version >= limit:
                inside = True
            elif (kind == "fixed" and version >= limit) or (kind == "last_affected" and version > limit):
                inside = False
    return inside


def _place(event):
    text = next(iter(event.values()))
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def _fixed(affected):
    return [event["fixed"] for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM"
            for event in one.get("events", ()) if "fixed" in event]


def report(findings, missing, packages, ignored):
    """Print what was found, and what was not looked up. Return the exit code."""
    bad = {one: [v for v in found if v[0] not in ignored] for one, found in findings.items()}
    bad = {one: found for one, found in bad.items() if found}
    for (name, version), found in sorted(bad.items()):
        for advisory, fixed in found:
            print(f"{name} {version} ({', '.join(packages[name, version])}): {advisory}, "
                  f"{f'fixed in {fixed}' if fixed else 'no fixed version'}")
    if missing:
        reasons = sorted(set(missing.values()))
        print(f"NOT AUDITED: {len(missing)} of {len(packages)} packages were not looked up, such as "
              f"{next(iter(sorted(missing)))[0]}: {reasons[0]}\nThis says nothing about their vulnerabilities. Run "
              "this where the advisories can be reached, or set ADVISORIES to a copy of OSV's database.")
    print(f"{len(packages)} packages in {len(files())} files, {len(packages) - len(missing)} looked up, "
          f"{len(bad)} with known vulnerabilities{f', ignored: {sorted(ignored)}' if ignored else ''}")
    return 1 if bad else NOT_LOOKED_UP if missing else 0


def main():
    packages = all_packages()
    ignored = {one for one in os.environ.get("IGNORE", "").split(",") if one}
    copy = os.environ.get("ADVISORIES")
    if copy:
        findings, newest = ask_copy(packages, Path(copy))
        age = (time.time() - Path(copy).stat().st_mtime) / 86_400
        print(f"advisories of {copy}, the newest of {newest[:10]}, a file of {age:.0f} days ago")
        return report(findings, {}, packages, ignored)
    return report(*ask_service(packages, os.environ.get("SERVICE", "pypi")), packages, ignored)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
