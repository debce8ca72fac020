"""Write the files of ``kernels/shared`` that follow from ``formats``; with --check only compare them."""

import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailrace.formats import (
    commitlog,
    consumequeue,
    indexfile,
    names,
    remoting,
    timerlog,
    timerwheel,
)
from tailrace.formats._layout import Layout
from tailrace.formats.requests import message_headers
from tailrace.formats.requests.custom_header import Int32, Int64

SHARED = Path(__file__).resolve().parents[1] / "src/tailrace/kernels/shared"
NAMES_HEAD = """\
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
\"\"\"Recognise names of properties and topics. `make gen` writes this file from ``formats.names``.\"\"\"

import cython

from tailrace.kernels.shared import constants as C
from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.big_endian import be32u
from tailrace.kernels.shared.copying import is_name
"""


def places(name: str, at: str, layout: Layout[Any]) -> dict[str, int]:
    """The size of a record of fixed size, and the offset of each field but the first."""
    return {f"{name}_SIZE": layout.size,
            **{f"{at}_{field.upper()}": offset for field, offset in layout.offsets.items() if offset}}


def layout_numbers() -> str:
    """The numbers of all formats for the kernels."""
    head, flags = commitlog.MESSAGE_HEAD, commitlog.SysFlag
    numbers = {
        **{f"AT_{name.upper()}": at for name, at in head.offsets.items() if at},
        "HEAD_SIZE": head.size, "HOST_V4_SIZE": commitlog.HOST_V4_LENGTH, "HOST_V6_SIZE": commitlog.HOST_V6_LENGTH,
        "BORNHOST_V6": flags.BORNHOST_V6, "STOREHOST_V6": flags.STOREHOST_V6, "INNER_BATCH": flags.INNER_BATCH,
        "HOSTS_V6": flags.BORNHOST_V6 | flags.STOREHOST_V6, "STORE_TIME_SIZE": commitlog.STORE_TIME_LENGTH,
        "HOST_AT_PORT": commitlog.HOST_V4_LENGTH - 4,
        "AT_PREPARED": commitlog.BODY_HEAD.offsets["prepared_transaction_offset"],
        "AT_BODY_LENGTH": commitlog.BODY_HEAD.offsets["body_length"], "BODY_HEAD_SIZE": commitlog.BODY_HEAD.size,
        "MAX_TOPIC_V1": commitlog.MAX_TOPIC_LENGTH_V1, "PROPERTIES_LENGTH_SIZE": commitlog.PROPERTIES_LENGTH_LENGTH,
        "MAX_PROPERTIES": commitlog.MAX_PROPERTIES_LENGTH,
        "FIXED_SIZE": commitlog.MIN_RECORD_LENGTH - 2 * commitlog.HOST_V4_LENGTH,
        "MIN_RECORD_SIZE": commitlog.MIN_RECORD_LENGTH, "BLANK_SIZE": commitlog.BLANK.size,
        "MAGIC_V1": commitlog.MESSAGE_MAGIC_V1, "MAGIC_V2": commitlog.MESSAGE_MAGIC_V2,
        "BLANK_MAGIC": commitlog.BLANK_MAGIC, "CRC_SIZE": commitlog.CRC_PROPERTY_LENGTH,
        "CRC_NAME": int.from_bytes(names.CRC_PROPERTY.encode(), "big"),
        "TRANSACTION_MASK": flags.TRANSACTION_MASK, "TRANSACTION_PREPARED": flags.TRANSACTION_PREPARED,
        "TRANSACTION_COMMIT": flags.TRANSACTION_COMMIT, "TRANSACTION_ROLLBACK": flags.TRANSACTION_ROLLBACK,
        **places("ITEM", "ITEM_AT", commitlog.BATCH_ITEM), **places("UNIT", "UNIT_AT", consumequeue.CQ_UNIT),
        "PRE_BLANK_SIZE": consumequeue.PRE_BLANK_SIZE,
        "INDEX_HEADER_SIZE": indexfile.INDEX_HEADER.size, "INDEX_SLOT_SIZE": indexfile.INDEX_SLOT.size,
        **places("INDEX_ENTRY", "ENTRY_AT", indexfile.INDEX_ENTRY),
        **places("TIMER_UNIT", "TIMER_AT", timerlog.TIMER_UNIT),
        "TIMER_MAGIC_DELETE": timerlog.MAGIC_DELETE, "TIMER_MAGIC_MASK": timerlog.MAGIC_MASK,
        "TIMER_MAGIC_ROLL": timerlog.MAGIC_ROLL,
        **places("SLOT", "SLOT_AT", timerwheel.SLOT),
        **places("BINARY_HEAD", "BINARY_AT", remoting.BINARY_HEAD),
        **name_numbers(), **send_numbers(), **pull_numbers(),
    }
    lines = "\n".join(f"{name} = {number}" for name, number in numbers.items())
    return (
        '"""Numbers of the files, written by `make gen` from ``tailrace.formats``; change them there.\n\n'
        "The build replaces each name by its number. First the record of the CommitLog: FIXED_SIZE is its size\n"
        "without hosts, body, topic and properties, CRC_NAME the name of the checksum property as one number.\n"
        "Then items of a batch request, units of a ConsumeQueue, the index file, units of the timer log,\n"
        "slots of the timer wheel, the start of a binary header on the wire, the numbers of names, and the fields of\n"
        "a send (SEND_*): their numbers, and as sums of bits those that are required and those of each type.\n"
        f'"""\n\n{lines}\n')


KERNEL_NAMES = (
    "TAGS", "KEYS", "UNIQ_KEY", "DELAY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "CRC_PROPERTY",
    "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS",
    "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "SCHEDULE_TOPIC", "TIMER_TOPIC",
)
TOPIC_STARTS = ("RETRY_GROUP_TOPIC_PREFIX", "DLQ_GROUP_TOPIC_PREFIX", "SYSTEM_TOPIC_PREFIX", "LMQ_PREFIX")
FUNCTION = """\
@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def {name}(b: cython.{buffer}, p: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    \"\"\"{about} The name is ``b[p:p + n]``.\"\"\"
{lines}"""
CASES = """\
    word: cython.longlong
    if n < 4:
        return 0
    word = be32u(b, p)
{cases}    return 0
"""


def function(name: str, about: str, lines: str, buffer: str = "const[cython.uchar][::1]") -> str:
    """A function of kernels that compares a name with known ones."""
    return FUNCTION.format(name=name, about=about, lines=lines, buffer=buffer)


def name_numbers() -> dict[str, int]:
    """The numbers of the names and starts of topics that the kernels know."""
    starts = [f"START_{name.removesuffix('_PREFIX')}" for name in TOPIC_STARTS]
    return {**{f"NAME_{name}": number for number, name in enumerate(KERNEL_NAMES, 1)},
            **{name: number for number, name in enumerate(starts, 1)}}


def if_at_p(name: str, compared: str, result: str) -> str:
    """The lines that return ``result`` if a name of at least four bytes is at ``p``.

    They compare four bytes at a time; the last four may overlap those before them.
    """
    raw = name.encode()
    words = [
        f"{f'be32u(b, p + {at})' if at else 'word'} == {int.from_bytes(raw[at : at + 4], 'big'):#x}"
        for at in sorted({*range(0, len(raw) - 3, 4), len(raw) - 4})]
    condition = " and ".join([words[0], f"n {compared} {len(raw)}", *words[1:]])
    if len(condition) > 112:
        condition = textwrap.fill(condition, 112, initial_indent=8 * " ", subsequent_indent=8 * " ")
        condition = f"(\n{condition}\n    )"
    return f"    if {condition}:\n        return {result}\n"


def mark_cases() -> str:
    """The lines that return the mark of a property's name, by the length of the name and by mark."""
    lines, word = [], "if"
    for length in sorted({*map(len, names.MARKS)}):
        lines.append(f"    {word} n == {length}:")
        marks: dict[str, list[str]] = {}
        for name, mark in sorted(names.MARKS.items()):
            if len(name) == length:
                marks.setdefault(mark, []).append(f'is_name(b, p, b"{name}", {length})')
        for mark, conditions in marks.items():
            condition = f"if {' or '.join(conditions)}:"
            if len(condition) > 112:
                condition = "if (\n" + textwrap.fill(
                    " or ".join(conditions).replace(", ", ",~"), 112, initial_indent=12 * " ",
                    subsequent_indent=12 * " ").replace("~", " ") + "\n        ):"
            lines.append(f"        {condition}\n            return C.{mark}")
        word = "elif"
    return "\n".join([*lines, "    return 0\n"])


def name_functions() -> str:
    """The names of ``formats.names`` for the kernels that recognise them."""
    known = "".join(if_at_p(getattr(names, one), "==", f"L.NAME_{one}") for one in KERNEL_NAMES)
    starts = "".join(
        if_at_p(getattr(names, one), ">=", f"L.START_{one.removesuffix('_PREFIX')}") for one in TOPIC_STARTS)
    return "\n\n".join([
        NAMES_HEAD,
        function("known_name", "Return the number NAME_* of a known name, else 0.", CASES.format(cases=known)),
        function("known_start", "Return the number START_* of the known start of a topic, else 0.",
                 CASES.format(cases=starts)),
        function("mark_of", "Return the flag for a property of this name, 0 if a plain message may have it.",
                 mark_cases(), "p_const_uchar")])


FIELD_HEAD = """\
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
\"\"\"Recognise fields of requests. `make gen` writes it from ``formats.requests`` and ``formats.remoting``.\"\"\"

import cython

from tailrace.kernels.shared import layouts as L
from tailrace.kernels.shared.copying import is_name
"""
SEND_CODES = (
    remoting.RequestCode.SEND_MESSAGE, remoting.RequestCode.SEND_MESSAGE_V2, remoting.RequestCode.SEND_BATCH_MESSAGE)


def send_fields() -> dict[str, tuple[str, str]]:
    """The long and the short name on the wire of each field of a send, by its attribute."""
    long, short = message_headers.SendMessageRequestHeader, message_headers.SendMessageRequestHeaderV2
    return {
        **{name: both for name, *both in zip(
            long.__struct_fields__, long.__struct_encode_fields__, short.__struct_encode_fields__, strict=True)},
        "unread": message_headers.BROKER_NAME_FIELDS}


def send_numbers() -> dict[str, int]:
    """The codes of sends, the numbers of their fields, and which of them are required or of which type."""
    fields = msgspec.structs.fields(message_headers.SendMessageRequestHeader)
    number = {name: n for n, name in enumerate(send_fields())}
    kinds = {"INT32": (Int32, Int32 | None), "INT64": (Int64, Int64 | None), "BOOL": (bool, bool | None)}
    flags = commitlog.SysFlag
    return {
        "CODE_SEND": SEND_CODES[0], "CODE_SEND_V2": SEND_CODES[1], "CODE_SEND_BATCH": SEND_CODES[2],
        **{f"SEND_{name.upper()}": n for name, n in number.items()}, "SEND_FIELDS": len(number),
        "SENDS_REQUIRED": sum(1 << number[f.name] for f in fields if f.required),
        **{f"SENDS_{kind}": sum(1 << number[f.name] for f in fields if f.type in types)
           for kind, types in kinds.items()},
        "SENDS_SYS_FLAGS": flags.COMPRESSED | flags.MULTI_TAGS | flags.COMPRESSION_MASK,
        "FLAG_ONEWAY": remoting.ONEWAY_FLAG, "PREFIX_SIZE": remoting.PREFIX.size,
        "PREFIX_AT_WORD": remoting.INT32.size, "BINARY_WORD": remoting.SerializeType.ROCKETMQ << 24,
        **{f"MEMBER_{snake(name)}": n for n, name in enumerate(remoting.JSON_MEMBERS)},
        "MEMBERS_TEXT": sum(1 << n for n, kind in enumerate(remoting.JSON_MEMBERS.values()) if kind is str)}


PULL_CODES = (remoting.RequestCode.PULL_MESSAGE, remoting.RequestCode.LITE_PULL_MESSAGE)


def pull_fields() -> dict[str, str]:
    """The name on the wire of each field of a pull, by its attribute."""
    header = message_headers.PullMessageRequestHeader
    return {**dict(zip(header.__struct_fields__, header.__struct_encode_fields__, strict=True)),
            "unread": message_headers.BROKER_NAME_FIELDS[0]}


def pull_numbers() -> dict[str, int]:
    """The codes of pulls, the numbers of their fields, and which of them are required or of which type."""
    fields = msgspec.structs.fields(message_headers.PullMessageRequestHeader)
    number = {name: n for n, name in enumerate(pull_fields())}
    odd = ("lite_topic", "request_source", "proxy_froward_client_id")
    flags = message_headers.PullSysFlag
    return {
        "CODE_PULL": PULL_CODES[0], "CODE_LITE_PULL": PULL_CODES[1],
        **{f"PULL_{name.upper()}": n for name, n in number.items()}, "PULL_FIELDS": len(number),
        "PULLS_REQUIRED": sum(1 << number[f.name] for f in fields if f.required),
        "PULLS_ODD": sum(1 << number[name] for name in odd),
        "PULLS_INT32": sum(1 << number[f.name] for f in fields if f.type in (Int32, Int32 | None)),
        "PULLS_INT64": sum(1 << number[f.name] for f in fields if f.type in (Int64, Int64 | None)),
        "FRAME_MAX": remoting.FRAME_MAX,
        "PULLS_COMMIT_OFFSET": flags.COMMIT_OFFSET, "PULLS_SUBSCRIPTION": flags.SUBSCRIPTION,
        "PULLS_SYS_FLAGS": flags.COMMIT_OFFSET | flags.SUSPEND | flags.SUBSCRIPTION | flags.LITE_PULL_MESSAGE}


def snake(name: str) -> str:
    """A name in camel case as the kernels write it: EXT_FIELDS for extFields."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()


def if_is(name: str, result: str) -> str:
    """The lines that return ``result`` for a name of any length."""
    return f'    if n == {len(name)} and is_name(b, p, b"{name}", {len(name)}):\n        return {result}\n'


def field_functions() -> str:
    """The names of the fields of sends and pulls, and of the members of a header."""
    def table(name: str, about: str, cases: Mapping[str, str]) -> str:
        lines = "".join(if_is(text, f"L.{number}") for text, number in cases.items()) + "    return -1\n"
        return function(name, about, lines, "p_const_uchar")

    fields = send_fields()
    return "\n\n".join([
        FIELD_HEAD,
        table("send_field", "Return the number SEND_* of a field of request 10, else -1.",
              {both[0]: f"SEND_{name.upper()}" for name, both in fields.items()}),
        table("send_field_v2", "Return the number SEND_* of a field of requests 310 and 320, else -1.",
              {both[1]: f"SEND_{name.upper()}" for name, both in fields.items()}),
        table("pull_field", "Return the number PULL_* of a field of a pull, else -1.",
              {text: f"PULL_{name.upper()}" for name, text in pull_fields().items()}),
        table("json_member", "Return the number MEMBER_* of a member of a JSON header, else -1.",
              {name: f"MEMBER_{snake(name)}" for name in remoting.JSON_MEMBERS})])


def generated() -> Mapping[str, str]:
    """The generated files, by name."""
    return {"layouts.py": layout_numbers(), "names.py": name_functions(), "field_names.py": field_functions()}


def main() -> int:
    stale = []
    for path, text in ((SHARED / name, text) for name, text in generated().items()):
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(str(path))
    if stale:
        print(f"not current, run `make gen`: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
