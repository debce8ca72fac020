"""Which worker collects and runs a file of tests."""

from types import SimpleNamespace

import pytest
from file_scheduling import OWN, Scheduling, collects, has_parts

FILES = [f"{OWN}store/test_{number}.py" for number in range(60)]


def test_each_unit_test_file_is_collected_by_one_worker_and_each_other_file_by_all():
    for name in FILES:
        assert [collects(name, worker, 3) for worker in range(3)].count(True) == 1
    parts = [sum(collects(name, worker, 3) for name in FILES) for worker in range(3)]
    assert min(parts) > 10, parts
    assert all(collects("tests/crash/test_enospc.py", worker, 3) for worker in range(3))


def test_a_worker_that_replaces_another_one_collects_all():
    assert all(collects(name, 3, 3) for name in FILES)


@pytest.mark.parametrize(("distribution", "arguments", "parts"), [
    ("loadfile", ["."], True), ("loadfile", [__file__], False), ("loadfile", [f"{__file__}::test_it"], False),
    ("load", ["."], False), ("no", ["."], False)])
def test_a_file_or_a_test_that_is_named_is_found_by_all(distribution, arguments, parts):
    assert has_parts(distribution, arguments) == parts


class Worker:
    def __init__(self, tests):
        self.tests, self.given, self.shutting_down = tests, [], False
        self.ran = 0

    def send_runtest_some(self, places):
        self.given += places

    def shutdown(self):
        self.shutting_down = True

    def run(self, scheduling, most=1 << 30):
        """Run tests as xdist does: one only if the next one is known, or if there will be none."""
        ran = []
        while len(ran) < most and self.ran < len(self.given) - (not self.shutting_down):
            place = self.given[self.ran]
            self.ran += 1
            ran.append(self.tests[place])
            scheduling.mark_test_complete(self, place)
        return ran


def of_file(file, count=3):
    return [f"{file}::test_{number}" for number in range(count)]


SPARK, CRASH, LAST = ("tests/spark/test_a.py", "tests/crash/test_b.py", "tests/integration/test_c.py")
SHARED = [*of_file(SPARK), *of_file(CRASH), *of_file(LAST, 1)]


@pytest.fixture
def scheduling(monkeypatch):
    config = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: SimpleNamespace()))
    monkeypatch.setattr("xdist.scheduler.loadscope.parse_tx_spec_config", lambda _: ["popen", "popen"])
    return Scheduling(config)


def begun(scheduling, *own):
    workers = [Worker([*SHARED, *of_file(file)]) for file in own]
    for worker in workers:
        scheduling.add_node(worker)
    for worker in workers:
        scheduling.add_node_collection(worker, worker.tests)
    assert scheduling.collection_is_completed
    scheduling.schedule()
    return workers


def test_a_worker_takes_its_own_files_first_and_then_the_longest_of_the_rest(scheduling):
    first, second = begun(scheduling, FILES[0], FILES[1])
    assert second.run(scheduling) == [*of_file(FILES[1]), *of_file(CRASH), *of_file(LAST, 1)]
    assert first.run(scheduling) == [*of_file(SPARK), *of_file(FILES[0])]
    assert first.shutting_down
    assert second.shutting_down
    assert scheduling.tests_finished
    assert not scheduling.has_pending


def test_a_worker_that_replaces_one_that_has_died_runs_the_rest_of_its_files(scheduling):
    first, second = begun(scheduling, FILES[0], FILES[1])
    assert first.run(scheduling, 4) == [*of_file(SPARK), of_file(FILES[0])[0]]
    assert scheduling.remove_node(first) == of_file(FILES[0])[1]
    second.run(scheduling)
    assert second.shutting_down
    assert not scheduling.tests_finished
    third = Worker([*SHARED, *of_file(FILES[0]), *of_file(FILES[1])])
    scheduling.add_node(third)
    scheduling.add_node_collection(third, third.tests)
    scheduling.schedule()
    assert third.run(scheduling) == of_file(FILES[0])[1:]
    assert scheduling.tests_finished
