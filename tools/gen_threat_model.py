"""Write docs/contributing/request-walk.md, a part of the threat model; ``--check`` only compares."""

import sys
from pathlib import Path

from tailrace.formats import filenames
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.table import REQUESTS, Role, Touch

PAGE = Path("docs/contributing/request-walk.md")
HEAD = """<!-- Written by `make gen` from the code; change it there. -->

# Request walk

Find out for each request what it touches besides the topics, groups or cluster that it names, and which check comes
first. It belongs to the [threat model](../explanation/threat-model.md). [Requests](../reference/protocol.md) has names
and fields.

"""
CHECKS = {
    Touch.RECORD: ("a record", "the topic or group of the record, once it is found; a missing one has the same answer"),
    Touch.RETRY: ("a retry topic", "its group, unless it is that of the request"),
    Touch.PROPERTIES: ("names in properties", "each queue, topic, group and client that they name"),
    Touch.CLIENT: ("a client id", "the client is of the same user, or a member of the group that was checked"),
    Touch.OTHER: ("a second group or topic", "the same action on it"),
    Touch.BROKER: ("a broker", "the broker is of the same user, and so is its cluster"),
    Touch.CREATION: ("what is missing", "Create on a topic or group that it would create"),
}
"""What a request may touch besides what it names, and the check before it does. Each kind has a line."""

DELETES = "Delete, if messages are deleted by what changes"
FURTHER = {
    RequestCode.UPDATE_BROKER_CONFIG: DELETES, RequestCode.UPDATE_AND_CREATE_TOPIC: DELETES,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: DELETES}


def further(request):
    """Return what a request needs besides its action and the checks of what it touches."""
    found = []
    if {filenames.USERS, filenames.ACLS} & {*request.changes.split(", ")}:
        found.append("a super user, unless accessChangesNeedSuperUser is false")
    if request.code in FURTHER:
        found.append(FURTHER[request.code])
    return "; ".join(found) or "-"


def rows():
    """Yield the rows of the table of requests."""
    for role in Role:
        for request in sorted(REQUESTS.values(), key=lambda one: one.code):
            if request.role is not role:
                continue
            kinds = [CHECKS[kind][0] for kind in Touch if request.touches is not None and kind in request.touches]
            action = "/".join(flag.name or "" for flag in request.action)
            resource = "/".join((flag.name or "").lower() for flag in request.resource)
            yield (f"| {request.code} | {request.code.name} | {role.value} | {action} | {resource} | "
                   f"{', '.join(kinds) or '-'} | {further(request)} |")


def walk():
    """Return the page."""
    checks = "".join(f"| {name} | {check} |\n" for name, check in CHECKS.values())
    return (
        f"{HEAD}| touched | checked before |\n|---|---|\n{checks}\n"
        "| code | request | answered by | action | on | touches besides | needs besides |\n"
        "|---|---|---|---|---|---|---|\n"
        + "".join(f"{row}\n" for row in rows()))


def main():
    new = walk()
    if "--check" not in sys.argv:
        PAGE.write_text(new)
        return 0
    current = PAGE.exists() and PAGE.read_text() == new
    if not current:
        print(f"not current, run `make gen`: {PAGE}", file=sys.stderr)
    return int(not current)


if __name__ == "__main__":
    sys.exit(main())
