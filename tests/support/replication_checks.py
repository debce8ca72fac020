"""What must hold for the logs, queues and messages of a simulated pair."""

from __future__ import annotations

import collections

from replication_node import Records
from replication_places import DEALS, GROUP, HA_PORT, PASSING, QUEUES, ROOT, TASKS, TOPIC

from tailrace.env.entropy import SeededEntropy
from tailrace.env.supervision import FAILURES
from tailrace.formats.commitlog import decode_message
from tailrace.formats.consumequeue import PRE_BLANK_SIZE
from tailrace.node.message_store import MessageStore
from tailrace.node.store_opening import StoreParts
from tailrace.testing.sent import ViolationError


def _units(store, topic, queue_id, begin):
    """Return {(queue offset, position)} of the messages of a queue that are at ``begin`` or later in the log."""
    queue = store.inner.queues.get(topic, queue_id)
    if queue is None:
        return set()
    return {(offset + number, int(unit["phy_offset"]))
            for offset, units in queue.runs(queue.min_offset, queue.max_offset) for number, unit in enumerate(units)
            if unit["size"] != PRE_BLANK_SIZE and unit["phy_offset"] >= begin}


class Checks:
    """The invariants of a `World`."""

    def started(self, node):
        """Check what a node has after its start."""
        self.counts["starts"] += 1
        end = node.end
        lost = []
        self.check_begin(node)
        node.expires = node.is_full
        for sent in self.sent:
            if node in sent.on and sent.phy_offset >= node.low and not node.has(sent, end):
                by_power = node.power_lost_s >= sent.at_s and not self.is_sync
                if not by_power and sent.phy_offset < node.cut_at:
                    raise ViolationError(f"I2: {node.name} had {sent.number} at {sent.phy_offset} and has {end} now")
                sent.on.discard(node)
                lost.append(sent)
        self.note(f"{node.name} serves as {'master' if node.is_master else 'slave'}, log to {end}, "
                  f"{len(lost)} acknowledged are lost here")
        node.cut_at = 1 << 60
        node.same_until = 0
        if node.is_master:
            self.shows_all |= node.lives > 1
            self.pops_have_holes |= node.lost_power
            self.records = Records(node)
            self._forfeit(node)
            self.check_deletion(node)
            for other in self.slaves:
                other.same_until = 0
                other.may_differ |= node.lost_power and not self.is_sync
        node.lost_power = False

    def _forfeit(self, master):
        """Forget what the operator has given up: a master continues without it."""
        for sent in self.sent:
            if sent.need and master not in sent.on:
                if master.has(sent, master.end):
                    sent.on.add(master)
                else:
                    self.counts["forfeited"] += 1
                    sent.need = 0

    # --- checks

    def check(self):
        """Check what must hold at each moment."""
        if self.wrong:
            raise ViolationError(self.wrong[0])
        failed = FAILURES - self.failures
        if self.fails:
            del failed["HaSender"]  # a read has failed, and the connection is closed: the slave connects again
        if failed:
            raise ViolationError(f"a loop has failed: {failed}")
        master = self.master
        for node in self.nodes:
            if node.ready:
                self.check_begin(node)
        self.note_deliveries()
        for node in self.slaves:
            if node.ready:
                if master.ready:
                    self._check_prefix(node, master)
                self._check_offsets(node)
        self.counts["checks"] += 1

    def _check_prefix(self, node, master):
        end, theirs = node.end, master.end
        until = min(end, theirs)
        start = max(min(node.same_until, until), min(until, max(node.low, master.low)))
        same = node.raw(start, until) == master.raw(start, until)
        if same and end <= theirs:
            node.same_until, node.frozen, node.may_differ, node.was_master = until, None, False, False
            return
        if not node.may_differ:
            raise ViolationError(f"I1: {node.name} has {end}, its master {theirs}, same bytes: {same}")
        if node.frozen is None:
            node.frozen = end
            self.counts["differences"] += 1
            self.note(f"{node.name} has another log than its master: {end} and {theirs}")
        if end > node.frozen and not self._follows_life(node, master):
            node.frozen = end  # bytes that the master has sent before its end
        if end > node.frozen:
            raise ViolationError(f"I1: {node.name} has another log, and it has grown from {node.frozen} to {end}")

    def _follows_life(self, node, master):
        """Whether a slave is connected to the process that is the master now."""
        return any(end.life is node.life and end.peer.life is master.life for end in self.network.ends_between(HA_PORT))

    def _check_offsets(self, node):
        broker = node.controller.broker
        for topic, group, queue_id, offset in broker.offsets.entries():
            most = node.store.queue_of(topic, queue_id).max
            if offset > most:
                raise ViolationError(f"I4: {group} has {offset} of {most} in {topic}/{queue_id} at {node.name}")
        for queue_id, floor in list(node.floors.items()):
            now = broker.offsets.query(GROUP, TOPIC, queue_id)
            if now < floor:
                raise ViolationError(f"I4: {floor} was committed at {node.name} in queue {queue_id}, and is {now} now")
            if now > floor:
                del node.floors[queue_id]

    def acknowledged(self, node, sent, need=None):
        """Check I2 for an acknowledgement of ``need`` copies that has arrived from a node."""
        self.counts["acknowledged"] += 1
        sent.need = need = need or self.need
        sent.on = {one for one in self.nodes if self._surely_has(one, sent)}
        lost = {one for one in self.nodes if one not in sent.on and (  # while the acknowledgement was on its way
            one.emptied_s >= sent.at_s or (one.power_lost_s >= sent.at_s and not self.is_sync))}
        if len((sent.on | lost) - {node}) < need - 1:
            raise ViolationError(
                f"I2: {sent.number} at {sent.phy_offset} is acknowledged for {need} copies, besides {node.name} "
                f"it is on {sorted(one.name for one in sent.on - {node})}")
        master = self.master
        if master.ready and master not in sent.on:  # another one than the one that has answered, or after its restart
            if not lost and (need > 1 or master is node):
                raise ViolationError(f"I5: {sent.number} is acknowledged, and {master.name} does not have it")
            sent.need = 0

    def _surely_has(self, node, sent):
        if sent.phy_offset < node.low:
            return True
        if not node.ready:
            return node.has(sent)
        queue = node.store.inner.commit_log.queue
        return node.has(sent, queue.flushed_where if self.is_sync else queue.max_offset)

    # --- at the end

    def _everything(self, store, topic=TOPIC):
        """Messages by queue, in their order."""
        found = {}
        for queue_id in range(QUEUES):
            low, high = store.queue_of(topic, queue_id).bounds
            bodies, at = [], low
            while at < high:
                result = store.get_message(topic, queue_id, at, 32)
                bodies += [decode_message(data).body for data in result.records]
                if result.next_begin_offset <= at:
                    raise ViolationError(f"a pull of queue {queue_id} at {at} stands still: {result}")
                at = result.next_begin_offset
            found[queue_id] = bodies
        return found

    def _check_messages(self):
        """I5."""
        found = self._everything(self.master.store)
        counts = collections.Counter(body for bodies in found.values() for body in bodies)
        for body, count in counts.items():
            if count > 1:
                raise ViolationError(f"I5: {self.by_body[body].number} is there {count} times: {self.by_body[body]}")
        for sent in self.sent:
            if sent.need and sent.topic == TOPIC and not counts[sent.body] and not self.is_expired(sent, self.master):
                raise ViolationError(f"I5: {sent.number} is acknowledged and lost: {sent}")
            if counts[sent.body] and sent.body not in found[sent.queue_id]:
                raise ViolationError(f"I5: {sent.number} is in another queue")
        for queue_id, bodies in found.items():
            for body in bodies:
                # At a slave that has deleted it, a reader is sent on to the first message there.
                if body not in self.consumed[queue_id] and self.by_body[body].phy_offset >= self.expired_to:
                    raise ViolationError(f"I5: {self.by_body[body].number} of queue {queue_id} was skipped")
            lost = {body for body in self.replicated[queue_id] - set(bodies)
                    if not self.is_expired(self.by_body[body], self.master)}
            if self.is_sync and lost:
                raise ViolationError(f"I5: consumed and lost: {[self.by_body[body].number for body in lost]}")
        self.counts["messages"] += sum(counts.values())

    def _check_same_units(self, node, master):
        """I3: queues of a slave have the records of its master at the same offsets, as far as both have them."""
        begin, gone = max(node.low, master.low), {*node.store.inner.stepped_over(), *master.store.inner.stepped_over()}
        end = min(one.store.inner.reput.reput_from_offset for one in (node, master))
        for topic, queue_id, *_ in master.store.queues():
            if len({one.store.inner.lives.deleted_up_to(topic) for one in (node, master)}) > 1:
                continue  # a promotion has undone a deletion
            # Units of lost messages cover damage: how many of them do is not in the log.
            ours, theirs = ({
                one for one in _units(side.store, topic, queue_id, begin) if one[1] not in gone and one[1] < end}
                for side in (node, master))
            if ours != theirs:
                raise ViolationError(
                    f"I3: {topic}/{queue_id} has other units at {node.name} than at {master.name}, from {begin} on: "
                    f"{sorted(ours ^ theirs)[:4]}")

    def _check_derived(self, node):
        """I3: compare queues and index with those of a store that is rebuilt from the log."""
        files = node.files.killed()
        for path in files.paths():
            if path.startswith((f"{ROOT}/consumequeue/", f"{ROOT}/index/", f"{ROOT}/tailrace/progress")):
                files.remove(path)
        store_config, broker_config = node.configs()
        parts = StoreParts(
            clock=node.clock, file_system=files, services=False, entropy=SeededEntropy(1), rebuild=True)
        with MessageStore.open(ROOT, config=store_config, broker_config=broker_config, parts=parts) as rebuilt:
            rebuilt.wait_dispatched()
            node.store.retention.clean_consume_queue.run_pass()  # as its service does some time after a deletion
            ours, wanted = node.store.queues(), rebuilt.queues()
            # The end of a queue without a message is known only where it had one.
            if [one for one in ours if one[2] < one[3]] != [one for one in wanted if one[2] < one[3]]:
                raise ViolationError(f"I3: queues of {node.name} are {ours}, and its log has {wanted}")
            for topic in (TOPIC, PASSING, DEALS, TASKS):
                if self._everything(node.store, topic) != self._everything(rebuilt, topic):
                    raise ViolationError(f"I3: queues of {node.name} and {topic} differ from its log")
            for sent in self.sent[:: max(1, len(self.sent) // 40)]:
                key = f"k{sent.number}"
                if list(node.store.query_records(sent.topic, key)) != list(rebuilt.query_records(sent.topic, key)):
                    raise ViolationError(f"I3: the index of {node.name} has other messages for {key}")
