"""Lives of a broker with transactions and POP on one directory, cut off by crashes, against what clients know.

`Clients` survive the crashes and note the answers. From them they know what may be delivered:

  TX1  A transaction whose commit was answered is in its queue once; no transaction is there twice.
  TX2  A transaction that its producer rolls back is never delivered.
  TX3  One without an answer is checked again after a crash, and follows the answer of its producer.
  P1  What was answered to a producer is popped until a consumer acknowledges it.
  P2  Each stored message is popped once in one life of the broker. A crash takes the offsets of the group
      that were not written: messages at or after them are popped again, and only those.
  P3  A copy in the retry topic is made for a pop whose time is over and that was not acknowledged before,
      one copy for each. So an acknowledgement that was answered ends its pop, over every crash.

After a power loss under ASYNC_FLUSH an answer counts once the log was synced after it. P3 does not hold after a
power loss: of what was not synced any page may be lost, under SYNC_FLUSH also a checkpoint that the timers have
delivered, while the acknowledgement that they delivered after it is kept. So a checkpoint may come to the revive
topic a second time, after its acknowledgement, or stand for another message that got the offset of a lost one.
Under ASYNC_FLUSH, P1 does not hold for a message whose invisible time was changed after the last sync: the end of
its old checkpoint may be kept, the new one lost.
"""

from __future__ import annotations

import collections
import errno
import itertools
from dataclasses import dataclass, field

from broker_world import GROUP, QUEUES, SMALL_SIZES, TOPIC, BrokerWorld
from pop_client import ack_fields, batch_ack_body, changed, pop_fields, popped

from tailrace.env.entropy import SeededEntropy
from tailrace.formats.commitlog import decode_message
from tailrace.formats.remoting import RequestCode, ResponseCode
from tailrace.testing import CrashFileSystem, SimClock, SimulatedCrash

PLAIN, COMMIT, ROLLBACK, OPEN_COMMIT, OPEN_ROLLBACK = "plain", "commit", "rollback", "open-commit", "open-rollback"
KINDS = (PLAIN, PLAIN, PLAIN, COMMIT, COMMIT, ROLLBACK, OPEN_COMMIT, OPEN_ROLLBACK)
BUSY = {2, 10}
"""Codes of a broker that serves later: SYSTEM_BUSY, and a store that takes nothing now."""


class ViolationError(AssertionError):
    """Clients were answered or given something wrong."""


@dataclass(eq=False)
class Fact:
    """Something that was answered; ``held`` unless a power loss may have taken it."""

    held: bool = True


@dataclass
class Sent:
    body: bytes
    kind: str
    queue_id: int
    fact: Fact | None = None
    place: tuple[int, int] | None = None
    """Offset in the half topic, and in the log."""
    ended: bool = False
    """Whether the end of the transaction was sent."""
    committed: Fact | None = None
    checks: int = 0
    maybe_acknowledged: bool = False

    @property
    def wanted(self):
        return self.kind in {PLAIN, COMMIT, OPEN_COMMIT}


@dataclass
class Pop:
    """One delivery of one message: what a checkpoint stands for."""

    one: object
    due: int
    ack: Fact | None = None
    is_usable: bool = True
    """Whether the broker knows the message of the receipt, which a power loss may have taken."""

    @property
    def is_acknowledged(self):
        return self.ack is not None and self.ack.held


@dataclass
class Clients:
    clock: SimClock
    sync: bool = True
    sent: dict = field(default_factory=dict)
    pops: dict = field(default_factory=lambda: collections.defaultdict(list))
    """By body."""
    given: dict = field(default_factory=dict)
    """By (topic, queue, offset): the body that was popped there."""
    given_now: set = field(default_factory=set)
    """The same places, of this life."""
    copies: dict = field(default_factory=lambda: collections.defaultdict(set))
    """By body: places in the retry topic."""
    ghosts: list = field(default_factory=list)
    """Pops whose answer never came: when they were made, and when they are over."""
    floor: dict = field(default_factory=dict)
    """By (topic, queue): the offset that was written."""
    has_holes: bool = False
    """Whether a power loss may have taken records from between others that timers had delivered."""
    floor_at_open: dict = field(default_factory=dict)
    """The same when this life began."""
    is_writing: bool = False
    """Whether a crash would come while offsets are written."""
    unsure: list = field(default_factory=list)
    """Answers since the last sync of the log."""
    changed_since_sync: list = field(default_factory=list)
    """Messages whose invisible time was changed since then."""
    waiting: list = field(default_factory=list)
    """Requests without an answer: number, what to do with the answer, what to do if it never comes."""
    counts: collections.Counter = field(default_factory=collections.Counter)

    # -- answers and crashes

    def fact(self):
        self.unsure.append(Fact())
        return self.unsure[-1]

    def synced(self):
        self.unsure.clear()
        self.changed_since_sync.clear()

    def ask(self, request, then, never=lambda: None):
        """Make a request, whose number ``request()`` returns; ``never`` is called if a crash takes the answer."""
        try:
            number = request()
        except SimulatedCrash:
            never()
            raise
        self.waiting.append((number, then, never))

    def take_answers(self, world):
        left = []
        for number, then, never in self.waiting:
            answer = world.answer(number)
            if answer is None:
                left.append((number, then, never))
            elif answer.code == ResponseCode.SYSTEM_ERROR and world.loop.tolerates:
                never()  # a read has failed in the request: what it asks for may have happened or not
            else:
                then(answer)
        self.waiting = left

    def crashed(self, *, power, keeps_some=False):
        """The broker is gone: what was not answered may have happened or not."""
        for _, _, never in self.waiting:
            never()
        self.waiting.clear()
        self.given_now.clear()
        if power and self.is_writing:
            self.floor.clear()  # the simulated disk may keep neither the old nor the new name of the file
        self.is_writing = False
        if power and not self.sync:
            for fact in self.unsure:
                fact.held = False
        self.has_holes |= power and (keeps_some or not self.sync)
        if power:  # what lies after the offsets that were written may be lost, and other messages get the place
            for place in [p for p in self.given if p[2] >= self.floor.get(p[:2], 0)]:
                body = self.given.pop(place)
                if not self.sync:
                    self.copies[body].discard(place)
                    for pop in self.pops[body]:
                        pop.is_usable &= pop.one.place != place
        if power and not self.sync:
            for sent in self.changed_since_sync:
                sent.maybe_acknowledged = True
        self.synced()
        self.counts["power losses" if power else "kills"] += 1

    def opened(self, world):
        """P2: the offsets that were written are there."""
        self.floor_at_open = dict(self.floor)
        found = world.persisted_offsets()
        for (topic, queue_id), offset in self.floor.items():
            have = found.get((topic, GROUP, queue_id), -1)
            if have < offset:
                raise ViolationError(f"P2: the offset of {topic} {queue_id} was written as {offset} and is {have}")

    def persisted(self, world):
        self.floor = {
            (topic, queue_id): offset for (topic, group, queue_id), offset in world.persisted_offsets().items()
            if group == GROUP}

    # -- producers

    def new(self, entropy):
        """A message that is about to be sent."""
        sent = Sent(b"%d" % len(self.sent), KINDS[entropy.randrange(len(KINDS))], entropy.randrange(QUEUES))
        self.sent[sent.body] = sent
        return sent

    def send(self, world, entropy):
        sent = self.new(entropy)
        kind = sent.kind

        def then(answer):
            if answer.code:
                raise ViolationError(f"a send is refused: {answer.code} {answer.remark}")
            sent.fact = self.fact()
            self.counts["sent " + kind] += 1
            if kind is not PLAIN:
                sent.place = int(answer.ext["queueOffset"]), int(answer.ext["msgId"][-16:], 16)

        self.ask(lambda: world.send(sent.body, sent.queue_id, half=kind is not PLAIN), then)

    def end(self, world, entropy, *, again=False):
        """End a transaction, or with ``again`` one whose end was sent before."""
        found = [s for s in self.sent.values() if s.kind in {COMMIT, ROLLBACK} and s.place and s.fact.held
                 and s.ended == again]
        if found:
            self._end(world, found[entropy.randrange(len(found))])

    def _end(self, world, sent, place=None, *, check=False):
        sent.ended = True
        commit = sent.wanted

        def then(answer):
            if not answer.code and commit:
                sent.committed = self.fact()
                self.counts["commits answered"] += 1
            elif answer.code and answer.code not in BUSY:
                # A late request about a half message that was checked since; the answer to the check counts.
                self.counts[f"ends refused {answer.code}"] += 1

        self.ask(lambda: world.end_transaction(*(place or sent.place), commit=commit, check=check), then)

    def answer_checks(self, world):
        """TX3: answer what the broker asks, an undecided one the second time."""
        asked, world.connection.asked = world.connection.asked, []
        for request in asked:
            assert request.code == RequestCode.CHECK_TRANSACTION_STATE, request
            sent = self.sent[decode_message(request.body).body]
            sent.checks += 1
            self.counts["checks"] += 1
            if sent.kind in {COMMIT, ROLLBACK} or sent.checks > 1:
                place = int(request.ext["tranStateTableOffset"]), int(request.ext["commitLogOffset"])
                self._end(world, sent, place, check=True)

    # -- consumers

    def pop(self, world, invisible_ms, most, then=lambda ones: None):
        made_at = self.clock.now_ms()

        def answered(answer):
            if answer.code not in {0, 210}:
                raise ViolationError(f"a pop is refused: {answer.code} {answer.remark}")
            ones = popped(answer, TOPIC, world.config.broker_name, GROUP)
            for one in ones:
                self.delivered(one)
            then(ones)

        self.ask(
            lambda: world.ask(
                world.pop_part.service.pop_message, RequestCode.POP_MESSAGE,
                pop_fields(TOPIC, GROUP, made_at, invisibleTime=invisible_ms, maxMsgNums=most)),
            answered, lambda: self.ghosts.append((made_at, made_at + invisible_ms)))

    def delivered(self, one):
        body, place, now = one.body, one.place, self.clock.now_ms()
        sent = self.sent.get(body)
        if sent is None or not sent.wanted:
            raise ViolationError(f"TX2: {body!r} is delivered, which {'was rolled back' if sent else 'nobody sent'}")
        if place in self.given_now:
            raise ViolationError(f"P2: {place} is popped twice in one life")
        if place[2] < self.floor_at_open.get(place[:2], 0) and place in self.given:
            raise ViolationError(f"P2: {place} is popped again although the offset after it was written")
        if self.given.get(place, body) != body:
            raise ViolationError(f"{place} was {self.given[place]!r} and is {body!r}")
        if place[0] != TOPIC:
            known = self.copies[body] | {place}
            over = self.over(body, now)
            if len(known) > over and not self.has_holes:
                raise ViolationError(
                    f"P3: {body!r} has {len(known)} copies, and {over} pops that are over without acknowledgement")
            self.copies[body] = known
            self.counts["came back"] += 1
        self.counts["popped again after a crash"] += place in self.given
        self.given_now.add(place)
        self.given[place] = body
        self.pops[body].append(Pop(one, one.due))
        self.counts["popped"] += 1

    def over(self, body, now):
        """The most pops of a message that can be over without acknowledgement.

        An answer that never came may have had the message and each copy of it that was there, in one request.
        """
        ends = [(pop.due, None) for pop in self.pops[body] if not pop.is_acknowledged]
        ends += [(due, made_at) for made_at, due in self.ghosts]
        counts = []
        for due, made_at in sorted(ends, key=lambda end: end[0]):
            if due <= now:
                there = 0 if made_at is None else sum(count for end, count in counts if end <= made_at)
                counts.append((due, 1 + there))
        return sum(count for _, count in counts)

    def live(self):
        """Pops that can be acknowledged in time."""
        now = self.clock.now_ms()
        return [
            pop for pops in self.pops.values() for pop in pops
            if pop.ack is None and pop.is_usable and pop.due > now]

    def ack(self, world, pops, *, batch=False):
        ones = [pop.one for pop in pops]
        in_time = {id(pop): pop.due > self.clock.now_ms() for pop in pops}

        def then(answer):
            if answer.code:
                raise ViolationError(f"an acknowledgement is refused: {answer.code} {answer.remark}")
            fact = self.fact()
            for pop in pops:
                self.sent[pop.one.body].maybe_acknowledged = True
                if in_time[id(pop)]:
                    pop.ack = fact
                self.counts["acknowledged" if in_time[id(pop)] else "acknowledged late"] += 1

        def never():
            for one in ones:
                self.sent[one.body].maybe_acknowledged = True

        def request():
            if batch:
                return world.ask(
                    world.pop_part.acks.ack_messages, RequestCode.BATCH_ACK_MESSAGE, {},
                    batch_ack_body(ones, TOPIC, GROUP, world.config.broker_name))
            return world.ask(world.pop_part.acks.ack_message, RequestCode.ACK_MESSAGE, ack_fields(ones[0], GROUP))

        self.ask(request, then, never)

    def change(self, world, pop, invisible_ms):
        now, in_time = self.clock.now_ms(), pop.due > self.clock.now_ms()
        sent = self.sent[pop.one.body]
        self.changed_since_sync.append(sent)

        def then(answer):
            if answer.code:
                raise ViolationError(f"a change is refused: {answer.code} {answer.remark}")
            new = changed(pop.one, answer)
            if in_time:
                pop.ack = self.fact()
            self.pops[sent.body].append(Pop(new, new.due))
            self.counts["changed"] += 1

        self.ask(
            lambda: world.ask(
                world.pop_part.acks.change_invisible_time, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                ack_fields(pop.one, GROUP, invisibleTime=invisible_ms)),
            then, lambda: self.ghosts.append((now, now + invisible_ms)))

    # -- the end

    def in_queues(self, world):
        """How often each message is in the queues of the topic."""
        world.dispatch()
        return collections.Counter(
            m.body for queue_id in range(QUEUES) for m in world.store.read(TOPIC, queue_id))

    def check_queues(self, found, *, final):
        """Compare how often each message is in the queues with what was answered."""
        for sent in self.sent.values():
            times = found[sent.body]
            if times > sent.wanted:
                rule = "TX1" if sent.wanted else "TX2"
                raise ViolationError(f"{rule}: {sent.body!r} ({sent.kind}) is there {times} times")
            stored = sent.fact is not None and sent.fact.held
            must = sent.committed is not None and sent.committed.held
            must |= stored and (sent.kind == PLAIN or (final and sent.wanted))
            if must and not times:
                raise ViolationError(f"TX1: {sent.body!r} ({sent.kind}) was answered and is lost")
        if extra := found.keys() - self.sent.keys():
            raise ViolationError(f"never sent: {extra}")

    def missing(self):
        """Messages that must come and that no consumer has acknowledged."""
        return [s.body for s in self.sent.values()
                if s.wanted and s.fact is not None and s.fact.held and not s.maybe_acknowledged]

    def check_came(self):
        """P1: all were delivered, once or more, until they were acknowledged."""
        if lost := self.missing():
            raise ViolationError(f"P1: {lost} never came, or did not come back")

    def drain(self, world):
        """Pop and acknowledge until nothing comes any more; what was sent must have come."""
        quiet = 0
        for _ in range(400):
            world.clock.advance(1000)
            world.steps()
            world.check_pass()
            self.answer_checks(world)
            world.loop.run()
            self.take_answers(world)
            came = []
            self.pop(world, 20_000, 32, came.extend)
            world.loop.run()
            self.take_answers(world)
            for one in came:
                self.ack(world, [next(p for p in self.pops[one.body] if p.one is one)])
            world.loop.run()
            self.take_answers(world)
            pending = world.broker.transactions.queue.pending
            quiet = 0 if came or pending else quiet + 1
            if quiet > 60:
                break
        else:
            raise ViolationError("messages come back again and again, or half messages stay pending")
        self.check_queues(self.in_queues(world), final=True)
        self.check_came()
        if world.pop_part.revive.pending:
            raise ViolationError(f"P3: {world.pop_part.revive.pending} checkpoints are never done with")


READ_ERRORS = (errno.EMFILE, errno.ENOMEM, errno.EIO)
INVISIBLE_MS = (500, 1000, 2500, 4000, 8000)


class Lives:
    """Several lives of a broker from one seed. ``before`` of the files decides where a life ends."""

    def __init__(self, seed, *, sync=True, actions=60, sizes=None):
        self.seed, self.sync, self.actions, self.sizes = seed, sync, actions, sizes
        self.clock = SimClock()
        self.clients = Clients(self.clock, sync)
        self.trace = []
        self.world = None

    def open(self, files, life):
        self.world = BrokerWorld(
            files, self.clock, sync=self.sync, entropy=SeededEntropy(self.seed * 7 + life), sizes=self.sizes)
        self.clients.opened(self.world)
        return self.world

    def live(self, files, life, *, tolerates=False):
        """One life up to its clean end, or until SimulatedCrash.

        With ``tolerates`` reads fail; the life then does not end: waiting messages must come without a restart.
        """
        entropy = SeededEntropy(self.seed * 1_000 + life)
        world = self.open(files, life)
        world.loop.tolerates = tolerates
        steps = self._steps(world, entropy)
        for _ in range(self.actions):
            name, action = steps[entropy.randrange(len(steps))]
            self.trace.append(f"{self.clock.now_ms() % 1_000_000} {name}")
            files.operation("action", name)
            action()
            if entropy.randrange(4):
                world.loop.run()
            self.clients.take_answers(world)
            self.clients.answer_checks(world)
        world.loop.run()
        self.clients.take_answers(world)
        if tolerates:
            return
        files.operation("action", "close")
        self.clients.is_writing = True
        world.close()
        self.clients.is_writing = False
        self.clients.synced()
        self.clients.persisted(world)

    def _steps(self, world, entropy):
        clients = self.clients

        def some(pops):
            return [pops[entropy.randrange(len(pops))]] if pops else []

        def pop():
            clients.pop(world, INVISIBLE_MS[entropy.randrange(len(INVISIBLE_MS))], 1 + entropy.randrange(6))

        def ack():
            for one in some(clients.live()):
                clients.ack(world, [one])

        def ack_batch():
            pops = clients.live()
            if pops:
                clients.ack(world, pops[: 1 + entropy.randrange(len(pops))], batch=True)

        def ack_late():
            now = self.clock.now_ms()
            late = [p for pops in clients.pops.values() for p in pops if p.ack is None and p.is_usable and p.due <= now]
            for one in some(late):
                clients.ack(world, [one])

        def change():
            for one in some(clients.live()):
                clients.change(world, one, INVISIBLE_MS[entropy.randrange(len(INVISIBLE_MS))])

        def wait():
            self.clock.advance((1, 100, 499, 500, 1000, 2500)[entropy.randrange(6)])

        def wait_and_serve():
            self.clock.advance((300, 1000, 1000, 3000)[entropy.randrange(4)])
            world.steps()

        def persist():
            clients.is_writing = True
            is_written = world.persist()
            clients.is_writing = False
            if is_written:
                clients.persisted(world)

        def flush_log():
            world.flush_log()
            clients.synced()

        return (
            [("send", lambda: clients.send(world, entropy))] * 8 + [("pop", pop)] * 6 + [("ack", ack)] * 4
            + [("ack_batch", ack_batch)] * 2 + [("ack_late", ack_late), ("change", change), ("change", change)]
            + [("end", lambda: clients.end(world, entropy))] * 4
            + [("end again", lambda: clients.end(world, entropy, again=True))]
            + [("wait", wait)] * 3 + [("wait_and_serve", wait_and_serve)] * 4 + [("persist", persist)] * 2
            + [(step.__name__, step) for step in (
                world.timers, world.timers, world.revive, world.revive, world.dispatch, world.check_pass,
                world.operations, world.flush_timers, world.flush_queues)]
            + [("flush_log", flush_log)])

    def crash(self, files, power, keep, number):
        """What is found after the crash."""
        if self.world is not None:
            self.world.loop.stop()
        self.clients.crashed(power=power, keeps_some=bool(keep))
        # No broker starts in the millisecond in which another one died: two pops would have one name.
        self.clock.advance((1, 50, 700, 3000, 20_000)[number % 5])
        return files.power_lost(SeededEntropy(number * 31 + keep), keep) if power else files.killed()

    def finish(self, files):
        """A last life without a crash: everything comes, and once."""
        world = self.open(files, 99)
        self.clients.check_queues(self.clients.in_queues(world), final=False)
        self.clients.drain(world)
        world.close()


def operations(seed, *, sync):
    """Number of operations of the first life of a seed."""
    files = CrashFileSystem()
    Lives(seed, sync=sync).live(files, 0)
    return files.operations


def crash_at(seed, places, keep, *, sync=True):
    """Crash the lives at ``places``, one place for each; ``keep`` is None for kills, else percent. Returns the lives.

    Raises ViolationError. A place that a life does not come to is its clean end.
    """
    lives, files = Lives(seed, sync=sync), CrashFileSystem()
    for life, place in enumerate(places):

        def before(number, _name, _path, place=place):
            if number == place:
                raise SimulatedCrash

        files.before, files.operations = before, 0
        try:
            lives.live(files, life)
        except SimulatedCrash:
            files = lives.crash(files, keep is not None, keep or 0, place)
        else:
            files = files.killed()
    files.before = None
    lives.finish(files)
    return lives


def _with_reads(seed, *, sync, fails=lambda _: 0):
    """Lives and files of which most reads are calls; ``fails`` returns the errno for the number of a read, or 0."""
    lives, files = Lives(seed, sync=sync, actions=150, sizes=SMALL_SIZES), CrashFileSystem()
    numbers = itertools.count()

    def before_read(_number, name, path, _pos, _n):
        if name == "map to read":
            raise OSError(errno.EACCES, "no mapping", path)
        if number := fails(next(numbers)):
            lives.clients.counts["reads that failed"] += 1
            raise OSError(number, "injected", path)

    files.before_read, files.cold = before_read, True
    return lives, files, numbers


def reads(seed, *, sync):
    """Numbers of the reads of the first life of a seed after its open."""
    lives, files, numbers = _with_reads(seed, sync=sync)
    lives.open(files, 0).loop.stop()
    first = next(numbers)
    lives, files, numbers = _with_reads(seed, sync=sync)
    lives.live(files, 0, tolerates=True)
    return range(first, next(numbers))


def fail_reads(seed, places, number, *, sync=True, percent=100):
    """Let ``percent`` of the reads ``places`` of the first life of a seed fail; then all must come, without a restart.

    Raises ViolationError. Returns the lives.
    """
    entropy = SeededEntropy(seed + places.start)
    is_over = []

    def fails(at):
        return number if at in places and not is_over and entropy.randrange(100) < percent else 0

    lives, files, _ = _with_reads(seed, sync=sync, fails=fails)
    try:
        lives.live(files, 0, tolerates=True)
        is_over.append(True)
        world = lives.world
        lives.clients.take_answers(world)
        for _, _, never in lives.clients.waiting:
            never()
        lives.clients.waiting.clear()
        world.loop.tolerates = False
        lives.clients.check_queues(lives.clients.in_queues(world), final=False)
        lives.clients.drain(world)
        world.close()
        lives.clients.synced()
        lives.clients.persisted(world)
        lives.clients.crashed(power=False)
        lives.finish(files.killed())
    except Exception as error:
        raise ViolationError(
            f"fail_reads({seed}, {places}, {number}, sync={sync}, percent={percent}): {error!r}") from error
    return lives


def sweep_reads(seed, *, sync, step=1, percent=100, width=1):
    """Let every ``step``-th read of a seed's first life fail, or ``percent`` of ``width`` reads from it on; counts."""
    counts, numbers = collections.Counter(), reads(seed, sync=sync)
    for turn, place in enumerate(numbers[seed % step :: step]):
        lives = fail_reads(
            seed, range(place, place + width), READ_ERRORS[turn % len(READ_ERRORS)], sync=sync, percent=percent)
        counts += lives.clients.counts
        counts["cases of failing reads"] += 1
    return counts


def sweep(seed, keep, *, sync, step=1, first=20):
    """Crash the first life of a seed at every ``step``-th operation, and two more lives somewhere; counts.

    Raises ViolationError, whose text begins with the arguments of `crash_at` that show it again.
    """
    last = operations(seed, sync=sync)
    counts = collections.Counter()
    for place in range(first, last, step):
        places = place, place * 7 % last, place * 13 % last
        try:
            lives = crash_at(seed, places, keep, sync=sync)
        except Exception as error:
            raise ViolationError(f"crash_at({seed}, {places}, {keep}, sync={sync}): {error}") from error
        counts += lives.clients.counts
        counts["cases"] += 1
    return counts
