"""Write the request walk in docs/explanation/threat-model.md from the table of requests; ``--check`` only compares."""

import sys
from pathlib import Path

from tailrace.formats import filenames
from tailrace.formats.remoting import RequestCode
from tailrace.formats.requests.table import REQUESTS, Role, Touch

PAGE = Path("docs/explanation/threat-model.md")
START = "<!-- request walk: written by `make gen` from the code; change it there. -->\n"
END = "<!-- end of the request walk -->\n"
CHECKS = {
    Touch.RECORD: ("a record", "the topic or group of the record, once it is found; a missing one has the same answer"),
    Touch.RETRY: ("a retry topic", "its group, unless it is that of the request"),
    Touch.PROPERTIES: ("names in properties", "each queue, topic, group and client that they name"),
    Touch.CLIENT: ("a client id", "the client is of the same user, or a member of the group that was checked"),
    Touch.OTHER: ("a second group or topic", "the same action on it"),
    Touch.BROKER: ("a broker", "the broker is of the same user, and so is its cluster"),
    Touch.CREATION: ("what is missing", "Create on a topic or group that it would create"),
}
"""What a request touches besides what it names, and what is asked before it does. Each kind has a line."""

DELETES = "Delete, if messages are deleted by what changes"
FURTHER = {
    RequestCode.UPDATE_BROKER_CONFIG: DELETES, RequestCode.UPDATE_AND_CREATE_TOPIC: DELETES,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: DELETES}


def rows():
    """Yield the rows of the table."""
    for role in Role:
        for request in sorted(REQUESTS.values(), key=lambda one: one.code):
            if request.role is not role:
                continue
            kinds = [CHECKS[kind] for kind in Touch if request.touches is not None and kind in request.touches]
            checks = [check for _, check in kinds]
            if {filenames.USERS, filenames.ACLS} & {*request.changes.split(", ")}:
                checks.append("a super user, unless accessChangesNeedSuperUser is false")
            if request.code in FURTHER:
                checks.append(FURTHER[request.code])
            action = "/".join(flag.name or "" for flag in request.action)
            resource = "/".join((flag.name or "").lower() for flag in request.resource)
            yield (f"| {request.code} | {request.code.name} | {role.value} | {action} | {resource} | "
                   f"{', '.join(name for name, _ in kinds) or '-'} | {'; '.join(checks) or '-'} |")


def walk():
    """Return the generated part."""
    head = ("| code | request | answered by | action | on | touches besides | checked before it does |\n"
            "|---|---|---|---|---|---|---|\n")
    return f"{START}\n{head}" + "".join(f"{row}\n" for row in rows()) + f"\n{END}"


def written(text):
    """Return the page with the part of today."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        sys.exit(f"{PAGE} has no place for the request walk")
    return before + walk() + after


def main():
    text = PAGE.read_text()
    new = written(text)
    if "--check" not in sys.argv:
        PAGE.write_text(new)
        return 0
    if new != text:
        print(f"not current, run `make gen`: {PAGE}", file=sys.stderr)
    return int(new != text)


if __name__ == "__main__":
    sys.exit(main())
