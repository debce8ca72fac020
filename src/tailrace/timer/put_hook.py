"""The put hook: decides which messages wait, and until when (RocketMQ's HookUtils.handleScheduleMessage)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, final

from tailrace.config import StoreConfig
from tailrace.env.clock import Clock
from tailrace.env.entropy import Entropy
from tailrace.formats.commitlog import (
    MAX_PROPERTIES_LENGTH,
    PROPERTY_SEPARATOR,
    SysFlag,
    decode_properties,
)
from tailrace.formats.names import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
)
from tailrace.kernels.properties import encode_properties
from tailrace.kernels.shared import constants as C
from tailrace.kernels.unit_records import property_values
from tailrace.model import MessageExtBrokerInner, PutMessageResult, PutMessageStatus
from tailrace.store.append import kind_of
from tailrace.store.dispatch import SCHEDULE_TOPIC
from tailrace.timer.properties import DELIVER_PROPERTIES, slot_ms, whole_number

__all__ = ["TimerPutHook", "ScheduledMessage"]

_PUT_BACK_ROOM: Final = 128
"""Upper bound of the bytes that delivery adds: two times, the number of rolls and the due time of a rolled timer."""
_END: Final = PROPERTY_SEPARATOR.encode()
_NOT_HALF: Final = (0, SysFlag.TRANSACTION_COMMIT)
"""Transaction types of messages that may wait; half messages and rolled back ones may not."""


class ScheduledMessage(NamedTuple):
    """Target and time of a message that waits."""

    topic: str
    queue_id: int
    out_ms: int
    """Its slot time in the wheel; 0 for a message with a delay level."""
    unique_key: str


_NAMES: Final = tuple(name.encode() for name in (
    DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, TIMER_OUT_MS, TIMER_DEL_UNIQKEY, UNIQ_KEY, REAL_TOPIC,
    REAL_QID))


@final
class TimerPutHook:
    """Turns a message with a delivery time or a delay level into one on the topic where it waits."""

    def __init__(
        self, clock: Clock, entropy: Entropy, config: StoreConfig, slot_num: Callable[[int], int]
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._config = config
        self._slot_num = slot_num
        self._max_delay_level = len(config.message_delay_level.split())

    def handle(self, message: MessageExtBrokerInner) -> PutMessageResult | ScheduledMessage | None:
        """Change ``message`` if it must wait. Return a result if it is refused, None if it does not wait."""
        stored = message.properties
        if not kind_of(message) & C.WAITS or message.topic in (TIMER_TOPIC, SCHEDULE_TOPIC):
            return None
        if message.sys_flag & SysFlag.TRANSACTION_MASK not in _NOT_HALF:
            return None
        level, delay_s, delay_ms, deliver_ms, out_ms, deletes, unique_key, topic, queue_id = property_values(
            stored, _NAMES)
        if level is not None and (number := whole_number(level) or 0) > 0:
            return self._transform_delay_level(
                message, decode_properties(stored), min(number, self._max_delay_level))
        if out_ms is not None or not (delay_s or delay_ms or deliver_ms):
            return None
        if not self._config.timer_wheel_enable:
            return self._not_enabled()
        now = self._clock.now_ms()
        try:
            if delay_s is not None:
                deliver = now + int(delay_s) * 1000
            elif delay_ms is not None:
                deliver = now + int(delay_ms)
            else:
                deliver = int(deliver_ms)
        except ValueError:
            return self._illegal("the delivery time is no number")
        if deliver <= now:
            return self._illegal("the timer to delete is due already") if deletes is not None else None
        if topic is not None or queue_id is not None:  # only the broker sets these
            stored = encode_properties({
                name: value for name, value in decode_properties(stored).items() if name not in (REAL_TOPIC, REAL_QID)})
        elif not stored.endswith(_END):
            stored += _END
        return self._moved(message, stored, unique_key or "", deliver, now)

    @staticmethod
    def _transform_delay_level(
        message: MessageExtBrokerInner, properties: dict[str, str], level: int
    ) -> ScheduledMessage:
        """Change a message with a level. A level wins over a delivery time; one above the highest is the highest."""
        for name in DELIVER_PROPERTIES:
            properties.pop(name, None)
        properties[DELAY] = str(level)
        waiting = ScheduledMessage(message.topic, message.queue_id, 0, properties.get(UNIQ_KEY, ""))
        properties[REAL_TOPIC] = message.topic
        properties[REAL_QID] = str(message.queue_id)
        message.properties = encode_properties(properties)
        message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1
        return waiting

    def handle_due(
        self, message: MessageExtBrokerInner, deliver_ms: int, unique_key: str
    ) -> PutMessageResult | ScheduledMessage | None:
        """Do what ``handle`` does for a message of the broker's own, without decoding its properties.

        Its properties have been encoded by the broker, the last one is TIMER_DELIVER_MS=``deliver_ms``, and no
        other one is about timers.
        """
        if not self._config.timer_wheel_enable:
            return self._not_enabled()
        now = self._clock.now_ms()
        return self._moved(message, message.properties, unique_key, deliver_ms, now) if deliver_ms > now else None

    def _moved(
        self, message: MessageExtBrokerInner, stored: bytes, unique_key: str, deliver: int, now: int
    ) -> PutMessageResult | ScheduledMessage:
        """Change a message that is due later than ``now`` to one of the timer topic, or return why it cannot wait.

        It gets the properties ``stored``, with its target added.
        """
        config = self._config
        if deliver - now > config.timer_max_delay_sec * 1000:
            return self._illegal(
                f"the delay of {deliver - now} ms is longer than timerMaxDelaySec allows, "
                f"{config.timer_max_delay_sec} s")
        out = slot_ms(deliver, config.timer_precision_ms)
        if self._is_reject(out):
            limit = config.timer_congest_num_each_slot
            return PutMessageResult(
                PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL,
                remark=f"timer message is under flow control, max num limit is {2 * limit} or the "
                f"current value is greater than {limit} and less than {2 * limit}, trigger random "
                "flow control")
        waiting = ScheduledMessage(message.topic, message.queue_id, out, unique_key)
        stored += (
            f"{TIMER_OUT_MS}\x01{out}\x02{REAL_TOPIC}\x01{message.topic}\x02{REAL_QID}\x01{message.queue_id}\x02"
        ).encode()
        if len(stored) + _PUT_BACK_ROOM > MAX_PROPERTIES_LENGTH:
            return PutMessageResult(
                PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
                remark=f"properties: {len(stored)} bytes, a timer message may have "
                f"{MAX_PROPERTIES_LENGTH - _PUT_BACK_ROOM}")
        message.properties, message.topic, message.queue_id = stored, TIMER_TOPIC, 0
        return waiting

    @staticmethod
    def _not_enabled() -> PutMessageResult:
        return PutMessageResult(
            PutMessageStatus.WHEEL_TIMER_NOT_ENABLE,
            remark="accurate timer message is not enabled, timerWheelEnable is false")

    @staticmethod
    def _illegal(why: str) -> PutMessageResult:
        return PutMessageResult(
            PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL, remark=f"timer message illegal: {why}")

    def _is_reject(self, out: int) -> bool:
        """Return True to refuse a timer: never up to the limit, at random above, always from twice the limit."""
        limit = self._config.timer_congest_num_each_slot
        if limit >= 0x7FFFFFFF:
            return False
        num = self._slot_num(out)
        if num <= limit:
            return False
        return num >= 2 * limit or self._entropy.randrange(limit) < num - limit
