"""Timer bytes that a RocketMQ 5 broker wrote: decoded, and written again."""

from tailrace.formats import timercheckpoint, timerlog, timerwheel
from tailrace.formats.commitlog import java_string_hash

UNIT = bytes.fromhex(
    "00000034ffffffffffffffff00000001000001a1fb6a63c0000007d00000000000000000"
    "000000c6002072c20000000000000000")
SLOT = bytes.fromhex("000000006b00dfda000000000000000000000000000000000000000100000000")
WRITE_TIME = 0x1A1FB6A63C0


def test_a_timer_log_unit_is_the_reference_s():
    unit = timerlog.TimerUnit(
        52, -1, timerlog.MAGIC_DEFAULT, WRITE_TIME, 2000, 0, 198, java_string_hash("Dest"), 0)
    assert timerlog.TIMER_UNIT.pack(*unit) == UNIT
    assert timerlog.TIMER_UNIT.unpack_from(UNIT) == unit


def test_a_slot_is_the_reference_s_and_where_it_has_it():
    slot = timerwheel.Slot((WRITE_TIME + 2000) // 1000, 0, 0, 1, 0)
    assert timerwheel.SLOT.pack(*slot) == SLOT
    assert slot.time % (2 * timerwheel.SLOTS_TOTAL) == 173018
    assert timerwheel.wheel_file_size() == 38_707_200


def test_a_blank_unit_has_its_magic_at_byte_12():
    blank = timerlog.TIMER_BLANK.pack(16, 0, timerlog.TIMER_BLANK_MAGIC)
    assert blank.hex() == "000000100000000000000000cbd43194"
    units, rest = divmod(100 << 20, 52)
    assert (units, rest) == (2_016_492, 16)


def test_a_timer_checkpoint_has_its_fields_where_the_reference_has_them():
    data = timercheckpoint.TIMER_CHECKPOINT.pack(1, 2, 3, 4, 5, 6, 7)
    assert [int.from_bytes(data[at : at + 8], "big") for at in range(0, 56, 8)] == list(range(1, 8))
    assert timercheckpoint.TIMER_CHECKPOINT_FILE_SIZE == 4096
