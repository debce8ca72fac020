"""POP with time as a variable: a model that knows what each pop must answer, over restarts and kills.

The model keeps for each group its offsets and pops. A pop has to answer with the next messages of its queues, as
many as it asks for. The retry topic is compared with the pops that are over: a copy must be there
LATE_MS after a pop is over without acknowledgement, must not be there before, and there is one for each. An
orderly pop is blocked exactly while one of its messages is neither acknowledged nor visible again. At times reads of
the services fail; after that nothing is missing, twice or late.
"""

from __future__ import annotations

import collections
import copy
import errno
from dataclasses import dataclass, field

from broker_world import QUEUE_FILE_UNITS, QUEUES, SMALL_SIZES, TOPIC, BrokerWorld
from pop_client import ack_fields, batch_ack_body, changed, pop_fields, popped

from tailrace.env.entropy import SeededEntropy
from tailrace.errors import UnknownTopicError
from tailrace.formats.pop import pop_retry_topic
from tailrace.formats.remoting import RequestCode
from tailrace.testing import CrashFileSystem, SimClock

FREE, ORDERLY = "free", "orderly"
RETRY = pop_retry_topic(TOPIC, FREE)
LATE_MS = 3_500
"""A message is back this long after its time, if services run every half second."""
TRIED_AGAIN_MS = 20_000
"""By then everything whose read failed was tried again."""
SIZES = SMALL_SIZES | {"mapped_file_size_consume_queue": 20 * QUEUE_FILE_UNITS}
INVISIBLE_MS = (1, 500, 999, 1000, 1001, 2000, 3500, 8000)


class ViolationError(AssertionError):
    """An answer is not what the model says."""


@dataclass
class Taken:
    """A message that was popped: over at ``due`` unless it is acknowledged before."""

    one: object
    due: int
    life: int
    state: str = "open"
    """``open``, ``done`` (acknowledged or changed in time), or ``late`` (acknowledged when it was over)."""


@dataclass
class Order:
    """The last orderly pop of a queue."""

    pop_time: int
    offsets: list
    visible: dict
    acknowledged: set = field(default_factory=set)

    def is_blocking(self, now):
        return any(o not in self.acknowledged and now < self.visible[o] for o in self.offsets)


@dataclass
class Known:
    """What a kill takes back to the last time it was written."""

    offsets: dict = field(default_factory=dict)
    """Of FREE by (topic, queue)."""
    order_offsets: dict = field(default_factory=dict)
    orders: dict = field(default_factory=dict)
    """The last orderly pop by queue."""


class Model:
    """One seed. ``run`` raises ViolationError."""

    def __init__(self, seed):
        self.seed, self.entropy = seed, SeededEntropy(seed)
        self.clock, self.files = SimClock(), CrashFileSystem()
        self.queues = {queue_id: [] for queue_id in range(QUEUES)}
        self.taken, self.orderly = [], []
        self.known = Known()
        self.written = Known()
        self.orders_written = self.written.orders
        self.counts = collections.Counter()
        self.trace = []
        self.polling = None
        self.open()

    def open(self):
        self.files.cold = True
        self.world = BrokerWorld(
            self.files, self.clock, entropy=SeededEntropy(self.seed + self.counts["opens"]), sizes=SIZES)
        self.counts["opens"] += 1
        self.polling = None

    def pick(self, choices):
        return choices[self.entropy.randrange(len(choices))]

    def ask(self, serve, code, fields, body=b""):
        number = self.world.ask(serve, code, fields, body)
        self.world.loop.run()
        return self.world.answer(number)

    def expect(self, what, found, wanted):
        if found != wanted:
            raise ViolationError(f"{what}: {found}, the model says {wanted}")

    # -- time and services

    def wait(self):
        self.world.run(self.pick((1, 499, 500, 501, 1000, 2500, 4000)))
        self.woken()
        self.check_copies()

    def wait_while_reads_fail(self):
        """Services run while a fifth of the reads fail, and then until all is tried again."""
        if self.polling is not None:
            return  # its answer may be an error
        files, loop = self.files, self.world.loop

        def before_read(_number, _name, path, _pos, _n):
            if self.entropy.randrange(5) == 0:
                self.counts["reads that failed"] += 1
                raise OSError(self.pick((errno.EMFILE, errno.ENOMEM, errno.EIO)), "injected", path)

        files.before_read, loop.tolerates = before_read, True
        self.world.run(self.pick((500, 1000, 2500)))
        files.before_read, loop.tolerates = None, False
        self.world.run(TRIED_AGAIN_MS)
        self.check_copies()

    def send(self):
        queue_id = self.entropy.randrange(QUEUES)
        body = b"%d" % sum(map(len, self.queues.values()))
        self.world.send(body, queue_id)
        self.world.loop.run()
        self.world.dispatch()
        self.queues[queue_id].append(body)
        self.world.loop.run()
        self.woken()

    def retry_bodies(self):
        self.world.dispatch()
        try:
            return [m.body for m in self.world.store.read(RETRY, 0)]
        except UnknownTopicError:  # nothing was retried
            return []

    def check_copies(self):
        """One copy for each pop that is over; none before, none for an acknowledged one."""
        now, found = self.clock.now_ms(), collections.Counter(self.retry_bodies())
        sources, may = collections.defaultdict(set), collections.Counter()
        for taken in self.taken:
            if taken.state != "done" and taken.due <= now:
                may[taken.one.body] += 1
                if taken.state == "open" and taken.due + LATE_MS <= now:
                    # Two pops of one message, after a reset, may be redelivered as one copy after a restart.
                    source = taken.one.place if taken.life < self.counts["opens"] else id(taken)
                    sources[taken.one.body].add(source)
        for body in may.keys() | found.keys():
            if not len(sources[body]) <= found[body] <= may[body]:
                raise ViolationError(
                    f"{body!r} came back {found[body]} times, it must be {len(sources[body])} to {may[body]} times")

    # -- the group FREE

    def ready(self):
        """Messages that a pop may answer with, by queue, in order."""
        found = {(TOPIC, q): bodies for q, bodies in self.queues.items()} | {(RETRY, 0): self.retry_bodies()}
        return {key: self.readable(bodies, self.known.offsets.get(key, 0)) for key, bodies in found.items()}

    @staticmethod
    def readable(bodies, begin):
        """What one read of a queue can bring: it ends with a file of the queue."""
        return list(enumerate(bodies))[begin : begin + QUEUE_FILE_UNITS - begin % QUEUE_FILE_UNITS]

    def pop(self):
        most, invisible_ms = 1 + self.entropy.randrange(8), self.pick(INVISIBLE_MS)
        ready = self.ready()
        answer = self.ask(self.world.pop_part.service.pop_message, RequestCode.POP_MESSAGE, pop_fields(
            TOPIC, FREE, self.clock.now_ms(), invisibleTime=invisible_ms, maxMsgNums=most))
        ones = popped(answer, TOPIC, self.world.config.broker_name, FREE)
        self.expect("number of messages", len(ones), min(most, sum(map(len, ready.values()))))
        self.took(ones, ready, invisible_ms)

    def took(self, ones, ready, invisible_ms):
        by_queue = collections.defaultdict(list)
        for one in ones:
            topic, queue_id, offset = one.place
            by_queue[topic, queue_id].append((offset, one.body))
            if invisible_ms is not None:
                self.expect("time of the pop", one.due, self.clock.now_ms() + invisible_ms)
            self.taken.append(Taken(one, one.due, self.counts["opens"]))
            self.counts["popped" if topic == TOPIC else "came back"] += 1
            if topic == TOPIC:
                self.expect("deliveries", one.reconsume_times, 0)
            elif one.reconsume_times < 1:
                raise ViolationError(f"{one.place} came back and does not say so")
        for key, found in by_queue.items():
            self.expect(f"messages of {key}", found, ready[key][: len(found)])
            self.known.offsets[key] = found[-1][0] + 1

    def open_pops(self, *, late=False):
        now = self.clock.now_ms()
        return [t for t in self.taken if t.state == "open" and (t.due <= now) == late]

    def ack(self, *, late=False):
        if pops := self.open_pops(late=late):
            taken = self.pick(pops)
            answer = self.ask(
                self.world.pop_part.acks.ack_message, RequestCode.ACK_MESSAGE, ack_fields(taken.one, FREE))
            self.expect("code of an acknowledgement", answer.code, 0)
            taken.state = "late" if late else "done"
            self.counts["acknowledged late" if late else "acknowledged"] += 1

    def ack_batch(self):
        if pops := self.open_pops():
            pops = pops[: 1 + self.entropy.randrange(len(pops))]
            answer = self.ask(
                self.world.pop_part.acks.ack_messages, RequestCode.BATCH_ACK_MESSAGE, {},
                batch_ack_body([t.one for t in pops], TOPIC, FREE, self.world.config.broker_name))
            self.expect("code of a batch", answer.code, 0)
            for taken in pops:
                taken.state = "done"
            self.counts["acknowledged in batches"] += len(pops)

    def change(self):
        self.not_twice_in_one_ms()
        if pops := self.open_pops():
            taken = self.pick(pops)
            answer = self.ask(
                self.world.pop_part.acks.change_invisible_time, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                ack_fields(taken.one, FREE, invisibleTime=self.pick(INVISIBLE_MS)))
            self.expect("code of a change", answer.code, 0)
            taken.state = "done"
            one = changed(taken.one, answer)
            self.taken.append(Taken(one, one.due, self.counts["opens"]))
            self.counts["changed"] += 1
            self.not_twice_in_one_ms()

    def not_twice_in_one_ms(self):
        """Let time pass if an offset may be popped twice: a pop and a change of one ms would have one name."""
        if self.counts["resets"] or self.counts["kills"]:
            self.clock.advance(2)

    def notification(self):
        answer = self.ask(self.world.pop_part.inspect.notification, RequestCode.NOTIFICATION, {
            "consumerGroup": FREE, "topic": TOPIC, "queueId": -1, "pollTime": 0, "bornTime": self.clock.now_ms()})
        self.expect("notification", answer.ext["hasMsg"], str(any(self.ready().values())).lower())
        self.counts["notifications"] += 1

    def poll(self):
        """A pop that waits if there is nothing."""
        if self.polling is not None:
            return
        ready = self.ready()
        if any(ready.values()):
            return
        number = self.world.ask(self.world.pop_part.service.pop_message, RequestCode.POP_MESSAGE, pop_fields(
            TOPIC, FREE, self.clock.now_ms(), invisibleTime=2000, pollTime=60_000))
        self.world.loop.run()
        self.expect("answer of a pop without messages", self.world.answer(number), None)
        self.polling = number

    def woken(self):
        """A pop that waits is answered as soon as there is a message."""
        if self.polling is None:
            return
        ready, answer = self.ready(), self.world.answer(self.polling)
        if answer is None:
            self.expect("messages while a pop waits", any(ready.values()), False)
            return
        self.polling = None
        ones = popped(answer, TOPIC, self.world.config.broker_name, FREE)
        # The first message that comes wakes it, so the messages that were redelivered after that are not in the answer.
        if not 1 <= len(ones) <= min(32, sum(map(len, ready.values()))):
            raise ViolationError(f"a pop that waited is answered with {len(ones)} messages")
        self.took(ones, ready, None)
        self.counts["woken"] += 1

    def reset(self):
        queue_id = self.entropy.randrange(QUEUES)
        offset = self.entropy.randrange(len(self.queues[queue_id]) + 1)
        if self.polling is None:
            self.clock.advance(50)  # two pops of one millisecond from one offset would have one name
            self.world.broker.offsets.assign_reset(FREE, TOPIC, {queue_id: offset})
            self.known.offsets[TOPIC, queue_id] = offset
            self.written = copy.deepcopy(self.known)  # the whole table is written
            self.written.orders = self.orders_written
            self.counts["resets"] += 1

    # -- the group ORDERLY

    def pop_in_order(self):
        queue_id, most, now = self.entropy.randrange(QUEUES), 1 + self.entropy.randrange(4), self.clock.now_ms()
        invisible_ms = self.pick(INVISIBLE_MS)
        begin, last = self.known.order_offsets.get(queue_id, 0), self.known.orders.get(queue_id)
        wanted = self.readable(self.queues[queue_id], begin)[:most]
        if last is not None and last.is_blocking(now):
            wanted = []
        answer = self.ask(self.world.pop_part.service.pop_message, RequestCode.POP_MESSAGE, pop_fields(
            TOPIC, ORDERLY, now, invisibleTime=invisible_ms, maxMsgNums=most, queueId=queue_id, order="true"))
        ones = popped(answer, TOPIC, self.world.config.broker_name, ORDERLY)
        self.expect(f"orderly pop of queue {queue_id}", [(one.place[2], one.body) for one in ones], wanted)
        if ones:
            offsets = [one.place[2] for one in ones]
            self.known.orders[queue_id] = Order(now, offsets, dict.fromkeys(offsets, now + invisible_ms))
            self.known.order_offsets[queue_id] = begin
            self.orderly += ones
            self.counts["popped in order"] += len(ones)

    def ack_in_order(self):
        if self.orderly:
            one = self.pick(self.orderly[-6:])
            _, queue_id, offset = one.place
            last = self.known.orders.get(queue_id)
            same_time = last is not None and last.pop_time == one.info.pop_time
            belongs = same_time and offset in last.offsets
            answer = self.ask(
                self.world.pop_part.acks.ack_message, RequestCode.ACK_MESSAGE, ack_fields(one, ORDERLY))
            begin = self.known.order_offsets.get(queue_id, 0)
            foreign = same_time and not belongs and offset >= begin  # of another pop of the same millisecond
            self.expect("code of an orderly acknowledgement", answer.code, 13 if foreign else 0)
            if belongs and offset >= begin:
                last.acknowledged.add(offset)
                left = [o for o in last.offsets if o not in last.acknowledged]
                self.known.order_offsets[queue_id] = left[0] if left else last.offsets[-1] + 1
                self.counts["acknowledged in order"] += 1

    # -- restarts

    def persist(self):
        self.world.persist()
        self.written = copy.deepcopy(self.known)
        self.orders_written = self.written.orders

    def stop(self):
        self.world.close()
        self.written = copy.deepcopy(self.known)
        self.orders_written = self.written.orders
        self.restart()

    def kill(self):
        self.world.loop.stop()
        self.known = copy.deepcopy(self.written)
        self.restart()
        self.counts["kills"] += 1

    def restart(self):
        self.clock.advance(self.pick((1, 700, 5000)))
        self.files = self.files.killed()
        self.open()
        self.world.run(LATE_MS)  # after a start the timers catch up first

    def run(self, steps=150):
        actions = (
            [self.send] * 6 + [self.pop] * 6 + [self.ack] * 5 + [self.ack_batch] * 2 + [self.change] * 2
            + [self.wait] * 6 + [self.wait_while_reads_fail]
            + [self.pop_in_order] * 4 + [self.ack_in_order] * 5 + [self.notification, self.poll]
            + [self.persist] * 2 + [lambda: self.ack(late=True), self.reset, self.stop, self.kill])
        for _ in range(steps):
            action = self.pick(actions)
            self.trace.append(f"{self.clock.now_ms() % 1_000_000} {getattr(action, '__name__', '')}")
            action()
            self.woken()
        self.world.run(max(INVISIBLE_MS) + LATE_MS)
        self.woken()
        self.check_copies()
        self.expect("checkpoints at the end", self.world.pop_part.revive.pending, 0 if not self.open_pops() else None)
        self.world.close()
        return self.counts
