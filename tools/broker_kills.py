"""kill -9 of a serving broker with transactions and POP consumers.

Each round starts `tailrace serve` on the same directory. Producers send plain messages and transactions: some
are committed, some rolled back, some stay open until a later check. Consumers pop with short invisible times and
acknowledge some messages, change the time of others, and leave the rest. Then the broker is killed. A last
round drains the topic. tests/support/broker_life.py says what is checked. Messages that may be popped
twice are those at or after the offsets in config/consumerOffset.json that the killed broker left.

ROUNDS=n and SEED=n. A seed repeats the choices, not the moments of the kills to the instruction.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from broker_life import COMMIT, PLAIN, ROLLBACK, Clients, ViolationError  # noqa: E402
from broker_world import GROUP, QUEUES, TOPIC  # noqa: E402
from pop_client import ack_fields, batch_ack_body, changed, pop_fields, popped  # noqa: E402

from tailrace.client import AsyncProducer, Producer, PullConsumer  # noqa: E402
from tailrace.env.clock import SystemClock  # noqa: E402
from tailrace.env.entropy import SeededEntropy  # noqa: E402
from tailrace.errors import RemotingError, StoreError  # noqa: E402
from tailrace.formats import fastjson  # noqa: E402
from tailrace.formats.remoting import RequestCode  # noqa: E402
from tailrace.model import Message  # noqa: E402
from tailrace.pytest_plugin import TailraceBroker  # noqa: E402
from tailrace.remoting.client import RemotingClient  # noqa: E402

BROKER = "broker-a"
PERSIST_MS = 1000
"""flushConsumerOffsetInterval of the broker; the default is 5000."""
SLACK_MS = 10_000
"""How late a service may be on a busy machine."""
INVISIBLE_MS = (1000, 1500, 2000)
CONFIG = f"""flushConsumerOffsetInterval={PERSIST_MS}
transactionTimeOut=1000
transactionCheckInterval=500
mappedFileSizeCommitLog=4194304
maxHashSlotNum=5000
maxIndexNum=20000
"""


class Loop:
    """One store directory, its clients, and what they know."""

    def __init__(self, path: Path, seed: int) -> None:
        self.clients = Clients(SystemClock())
        self.entropy = SeededEntropy(seed)
        config = path.with_name(path.name + ".conf")
        config.write_text(CONFIG + ("flushDiskType=SYNC_FLUSH\n" if seed % 2 else ""))
        self.broker = TailraceBroker(path, "--config", str(config))
        self.first_popped_ms: dict[tuple[str, int, int], int] = {}
        self.oldest_again_ms = 0
        """The longest time between a pop and the kill after which the message was redelivered."""
        self.killed_ms = 0

    def now_ms(self) -> int:
        return self.clients.clock.now_ms()

    # -- clients

    def check(self, message):
        """Answer what became of a transaction; an open one is decided at its second check."""
        sent = self.clients.sent[message.body]
        sent.checks += 1
        self.clients.counts["checks"] += 1
        if sent.kind not in {COMMIT, ROLLBACK} and sent.checks < 2:
            return None
        return sent.wanted

    async def produce(self, producer) -> None:
        while True:
            sent = self.clients.new(self.entropy)
            message = Message(topic=TOPIC, body=sent.body)
            if sent.kind == PLAIN:
                await producer.send(message, queue_id=sent.queue_id)
            else:
                decision = sent.wanted if sent.kind in {COMMIT, ROLLBACK} else None
                await producer.send_in_transaction(message, lambda _, d=decision: d, queue_id=sent.queue_id)
            sent.fact = self.clients.fact()
            self.clients.counts[f"sent {sent.kind}"] += 1
            await asyncio.sleep(0.002)

    async def pop(self, client, invisible_ms: int, most: int = 32) -> list:
        begun_ms = self.now_ms()
        try:
            answer = await client.invoke(self.broker.broker, RequestCode.POP_MESSAGE, _texts(pop_fields(
                TOPIC, GROUP, begun_ms, invisibleTime=invisible_ms, maxMsgNums=most, pollTime=300)),
                timeout_ms=20_000)
        except BaseException:
            self.clients.ghosts.append((begun_ms, begun_ms + invisible_ms))
            raise
        if answer.code not in {0, 209, 210}:
            raise ViolationError(f"a pop is refused: {answer.code} {answer.remark}")
        ones = popped(answer, TOPIC, BROKER, GROUP) if not answer.code else []
        found = []
        for one in ones:
            if one.place in self.clients.given:
                self.oldest_again_ms = max(
                    self.oldest_again_ms, self.killed_ms - self.first_popped_ms[one.place])
            self.clients.delivered(one)
            self.first_popped_ms[one.place] = one.info.pop_time
            found.append(self.clients.pops[one.body][-1])
        return found

    async def ack(self, client, pops, *, batch: bool = False) -> None:
        for pop in pops:
            self.clients.sent[pop.one.body].maybe_acknowledged = True
        if batch:
            code, ext = RequestCode.BATCH_ACK_MESSAGE, {}
            body = batch_ack_body([pop.one for pop in pops], TOPIC, GROUP, BROKER)
        else:
            code, ext, body = RequestCode.ACK_MESSAGE, _texts(ack_fields(pops[0].one, GROUP)), b""
        answer = await client.invoke(self.broker.broker, code, ext, body, timeout_ms=20_000)
        if answer.code:
            raise ViolationError(f"an acknowledgement is refused: {answer.code} {answer.remark}")
        now, fact = self.now_ms(), self.clients.fact()
        for pop in pops:
            if now < pop.due:
                pop.ack = fact
            self.clients.counts["acknowledged" if now < pop.due else "acknowledged late"] += 1

    async def change(self, client, pop) -> None:
        invisible_ms = INVISIBLE_MS[self.entropy.randrange(len(INVISIBLE_MS))]
        begun_ms = self.now_ms()
        try:
            answer = await client.invoke(
                self.broker.broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
                _texts(ack_fields(pop.one, GROUP, invisibleTime=invisible_ms)), timeout_ms=20_000)
        except BaseException:
            self.clients.ghosts.append((begun_ms, begun_ms + invisible_ms))
            raise
        if answer.code:
            raise ViolationError(f"a change is refused: {answer.code} {answer.remark}")
        if self.now_ms() < pop.due:
            pop.ack = self.clients.fact()
        one = changed(pop.one, answer)
        self.clients.pops[one.body].append(type(pop)(one, one.due))
        self.clients.counts["changed"] += 1

    async def consume(self, client) -> None:
        while True:
            pops = await self.pop(client, INVISIBLE_MS[self.entropy.randrange(len(INVISIBLE_MS))],
                                  1 + self.entropy.randrange(16))
            kept = [pop for pop in pops if self.entropy.randrange(5)]
            if len(kept) > 1 and self.entropy.randrange(3) == 0:
                await self.ack(client, kept, batch=True)
                continue
            for pop in kept:
                if self.entropy.randrange(8):
                    await self.ack(client, [pop])
                else:
                    await self.change(client, pop)

    # -- rounds

    def start(self) -> None:
        """Start the broker, and compare what is in the queues."""
        self.broker.start()
        with Producer(broker=self.broker.broker) as producer:
            producer.create_topic(TOPIC, QUEUES)
        self.compare(final=False)

    def compare(self, *, final: bool) -> None:
        """TX1, TX2 and half of P1: what is in the queues."""
        with PullConsumer(broker=self.broker.broker, group="audit") as consumer:
            found = [m.body for m in consumer.messages(TOPIC, start="first", follow=False)]
        self.clients.check_queues(collections.Counter(found), final=final)

    def round(self) -> None:
        """Serve clients for a while, then kill the broker. Raises ViolationError."""
        self.start()
        asyncio.run(self._serve(0.4 + self.entropy.randrange(2000) / 1000))
        self.clients.crashed(power=False)
        self.clients.floor_at_open = self.written_offsets()

    async def _serve(self, seconds: float) -> None:
        remoting = RemotingClient()
        async with AsyncProducer(broker=self.broker.broker, group="PG", check=self.check) as producer:
            tasks = [asyncio.create_task(self._until_killed(work)) for work in (
                self.produce(producer), self.produce(producer), self.consume(remoting), self.consume(remoting))]
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            self.killed_ms = self.now_ms()
            await asyncio.to_thread(self.broker.kill)
            for task in tasks:
                if task not in done:
                    task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            await remoting.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _until_killed(self, work) -> None:
        with contextlib.suppress(RemotingError):
            await work

    def written_offsets(self) -> dict[tuple[str, int], int]:
        """By topic and queue, what the killed broker has written of the group."""
        with contextlib.suppress(OSError):
            table = fastjson.loads((self.broker.store_path / "config/consumerOffset.json").read_bytes())["offsetTable"]
            return {
                (topic, int(queue)): offset for key, queues in table.items()
                for topic, _, group in [str(key).rpartition("@")] if group == GROUP
                for queue, offset in queues.items()}
        return {}

    def finish(self) -> None:
        """Drain the topic: everything comes, and once. Raises ViolationError."""
        self.start()
        try:
            asyncio.run(self._drain())
            self.compare(final=True)
            self.clients.check_came()
        finally:
            self.broker.stop()
        if self.oldest_again_ms > PERSIST_MS + SLACK_MS:
            raise ViolationError(f"P2: popped {self.oldest_again_ms} ms before a kill, and popped again")

    def _is_complete(self) -> bool:
        try:
            self.compare(final=True)
        except ViolationError:
            return False
        return True

    async def _drain(self) -> None:
        remoting, quiet_since, until = RemotingClient(), time.monotonic(), time.monotonic() + 120
        async with AsyncProducer(broker=self.broker.broker, group="PG", check=self.check) as producer:
            # A transaction makes the group known to the broker, which then asks.
            await producer.send_in_transaction(Message(topic="other", body=b"x"), lambda _: True)
            while time.monotonic() < until:
                pops = await self.pop(remoting, 30_000)
                for pop in pops:
                    await self.ack(remoting, [pop])
                if pops:
                    quiet_since = time.monotonic()
                elif time.monotonic() - quiet_since > max(INVISIBLE_MS) / 1000 + 3:
                    if await asyncio.to_thread(self._is_complete):
                        break
                    quiet_since = time.monotonic()  # on a busy machine transactions are settled late
        await remoting.close()


def _texts(fields: dict) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def main() -> int:
    seed, rounds = int(os.environ.get("SEED", "1")), int(os.environ.get("ROUNDS", "60"))
    began, each, violations = time.time(), 6, 0
    for first in range(0, rounds, each):
        with tempfile.TemporaryDirectory() as directory:
            loop = Loop(Path(directory) / "store", seed * 1000 + first // each)
            try:
                for _ in range(min(each, rounds - first)):
                    loop.round()
                loop.finish()
            except (ViolationError, StoreError) as error:
                violations += 1
                print(f"VIOLATION seed={seed} rounds from {first}: {error}")
            finally:
                loop.broker.kill()
            told = ", ".join(f"{name} {count}" for name, count in sorted(loop.clients.counts.items()))
            print(f"{min(first + each, rounds)} rounds, {time.time() - began:.0f} s: {told}; "
                  f"popped again up to {loop.oldest_again_ms} ms before a kill", flush=True)
        if violations:
            return 1
    print(f"0 violations, seed {seed}")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(main())
