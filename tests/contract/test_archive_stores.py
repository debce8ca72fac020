"""One contract for the places of archives: a directory, a fake of S3, SeaweedFS, versitygw (``make object-store``)."""

import os
import threading

import pytest
from fake_s3 import FakeS3
from fault_proxy import FAULTS, FaultProxy
from seaweedfs import seaweedfs
from versitygw import versitygw

from tailrace.env.clock import SystemClock
from tailrace.env.entropy import SeededEntropy
from tailrace.errors import ConfigError, StoreLockedError
from tailrace.store.archive_store import ArchiveChangedError, Attempt, PosixArchive, archive_at

pytest.importorskip("obstore")
from tailrace.env.object_store import ObjectStore, ObjectStoreError, Timeouts, place_of
from tailrace.store.object_archive import LEFT_OVER_MS, ObjectArchive

NAME = f"_manifests/{0:020d}.json"
ATTEMPT = Attempt(65536, "00000000000000aa")
DATA = f"rows/dt=2026-11-21/segment=p{65536:020d}/part-00000-00000000000000aa.parquet"


@pytest.fixture
def credentials(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")


@pytest.fixture
def fake(credentials):
    made = FakeS3("lake")
    yield made
    made.close()


@pytest.fixture(scope="module")
def weed():
    with seaweedfs() as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def versity():
    with versitygw() as endpoint:
        yield endpoint


OTHERS = [pytest.param(one, marks=pytest.mark.long) for one in ("weed", "versity")]


def object_archive(endpoint, bucket="lake", *, patience_ms=20_000, timeouts=None, sleep=None, prefix="one/archive"):
    return ObjectArchive(ObjectStore(
        place_of(f"s3://{bucket}/{prefix}?endpoint={endpoint}"), patience_ms=patience_ms, timeouts=timeouts,
        clock=SystemClock(), entropy=SeededEntropy(1), **({} if sleep is None else {"sleep": sleep})))


@pytest.fixture(params=["directory", "fake", *OTHERS])
def archive(request, tmp_path):
    match request.param:
        case "directory":
            return PosixArchive(str(tmp_path / "archive"))
        case "fake":
            return object_archive(request.getfixturevalue("fake").endpoint)
        case _:
            request.getfixturevalue("credentials")
            return object_archive(request.getfixturevalue(request.param), prefix=f"{tmp_path.name}/archive")


# -- the contract


def test_a_new_file_is_written_once(archive):
    assert archive.read(NAME) is None
    assert archive.head(NAME) is None
    version = archive.put_new(NAME, b"first")
    assert archive.read(NAME) == (b"first", version)
    assert (archive.head(NAME).size, archive.head(NAME).version) == (5, version)
    with pytest.raises(ArchiveChangedError, match=r"another job has written _manifests/0{20}.json"):
        archive.put_new(NAME, b"second")
    assert archive.read(NAME) == (b"first", version)


def test_a_file_is_replaced_only_in_the_version_that_was_read(archive):
    with pytest.raises((ArchiveChangedError, OSError)):
        archive.replace(NAME, b"nothing is there", '"0123456789abcdef0123456789abcdef"')
    first = archive.put_new(NAME, b"first")
    second = archive.replace(NAME, b"the second", first)
    assert first != second
    with pytest.raises(ArchiveChangedError):
        archive.replace(NAME, b"a third", first)
    assert archive.read(NAME) == (b"the second", second)


def test_names_are_listed_by_directory(archive):
    names = [f"_manifests/{number:020d}.json" for number in range(11)]
    for name in names:
        archive.put_new(name, name.encode())
    archive.put_new("rows/dt=2026-11-21/one", b"1")
    archive.put_new("rows/dt=2026-11-22/two", b"2")
    assert archive.list("_manifests") == [name.rpartition("/")[2] for name in names]
    assert archive.list("rows") == ["dt=2026-11-21", "dt=2026-11-22"]
    assert archive.list("rows/dt=2026-11-22") == ["two"]
    assert archive.list("row") == archive.list("_open") == []


def test_a_deleted_file_is_gone_and_a_second_time_no_error(archive):
    archive.put_new("rows/dt=2026-11-21/one", b"1")
    archive.delete("rows/dt=2026-11-21/one")
    archive.delete("rows/dt=2026-11-21/one")
    assert archive.head("rows/dt=2026-11-21/one") is None
    assert archive.list("rows") in ([], ["dt=2026-11-21"])


def test_ranges_of_a_file_are_read(archive):
    data = bytes(range(256)) * 40
    archive.put_new(DATA, data)
    file = archive.open(DATA)
    assert file.size() == len(data)
    assert file.pread(10, 250) == data[250:260]
    assert file.pread(100, len(data) - 7) == data[-7:]
    assert file.pread(5, len(data)) == b""
    room = memoryview(bytearray(300))
    assert file.pread_into(room, 100) == 300
    assert room == data[100:400]
    assert file.pread_into(room, len(data) - 9) == 9
    file.close()
    with pytest.raises(FileNotFoundError):
        archive.open(DATA + ".other")


def test_a_data_file_has_its_name_when_it_is_published_and_its_attempt_is_known_until_it_ends(archive):
    data = os.urandom(100_000)
    new = archive.create(DATA, ATTEMPT)
    new.truncate(0)
    new.pwrite(data[:70_000], 0)
    new.pwrite(data[70_000:], 70_000)
    new.sync_data()
    written = new.written()
    assert (written.size(), written.pread(len(data), 0)) == (len(data), data)
    written.close()
    new.close()
    assert archive.list("_staging") == [f"{65536:020d}"]
    archive.publish([(new.name, DATA)])
    assert archive.read(DATA)[0] == data
    assert archive.head(DATA).tag == new.tag
    archive.end_attempts(65536, ATTEMPT.name)
    archive.end_attempts(65536)
    assert archive.list(f"_staging/{65536:020d}") == []
    assert archive.left_over() == []


def test_an_archive_is_held_by_one_job_or_needs_no_hold(archive):
    hold = archive.hold()
    if archive.remote:
        archive.hold().release()
        assert archive.list("_staging") == [], "the check leaves nothing"
    else:
        with pytest.raises(StoreLockedError, match="another archive job"):
            archive.hold()
    hold.release()
    archive.hold().release()


# -- object stores alone


@pytest.fixture(params=["fake", *OTHERS])
def server(request, credentials, tmp_path):
    """Host and port of a server, and a prefix that no other test has."""
    found = request.getfixturevalue(request.param)
    endpoint = found.endpoint if request.param == "fake" else found
    return ("127.0.0.1", int(endpoint.rpartition(":")[2])), f"{tmp_path.name}/archive"


def test_one_of_many_writers_wins(server):
    (host, port), prefix = server
    one, won = object_archive(f"http://{host}:{port}", prefix=prefix), []

    def put(number):
        try:
            one.put_new(NAME, b"writer %d" % number)
        except ArchiveChangedError:
            return
        won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert one.read(NAME)[0] == b"writer %d" % won[0]


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_survived_and_nothing_is_written_twice(server, kind):
    target, prefix = server
    proxy = FaultProxy(target, hang_s=5)
    limit_ms = 100 if kind == "hang" else 2_000
    one = object_archive(
        proxy.endpoint, prefix=prefix, timeouts=Timeouts(1_000, limit_ms, limit_ms), sleep=lambda _: None)
    try:
        for number in range(3):
            name, data = f"_manifests/{number:020d}.json", os.urandom(5_000)
            proxy.next = [kind, kind if kind != "hang" else None]
            version = one.put_new(name, data)
            with pytest.raises(ArchiveChangedError):
                one.put_new(name, b"other bytes")
            proxy.next = [kind]
            assert one.read(name) == (data, version)
            proxy.next = [kind]
            assert one.open(name).pread(100, 4_950) == data[4_950:]
            proxy.next = [kind]
            changed = one.replace(name, data + b"!", version)
            assert one.read(name) == (data + b"!", changed)
            proxy.next = [kind]
            assert len(one.list("_manifests")) == number + 1
        assert proxy.hits >= 15
    finally:
        proxy.close()


def test_faults_by_chance_are_survived(server):
    target, prefix = server
    proxy = FaultProxy(target, rate=0.25, hang_s=5, seed=int(os.environ.get("SEED", "7"), 0))
    one = object_archive(
        proxy.endpoint, prefix=prefix, timeouts=Timeouts(1_000, 300, 300), sleep=lambda _: None)
    written = {}
    try:
        for number in range(20):
            name = f"_manifests/{number:020d}.json"
            written[name] = os.urandom(3_000 + number)
            one.put_new(name, written[name])
        for name, data in written.items():
            assert one.read(name)[0] == data
        assert [f"_manifests/{name}" for name in one.list("_manifests")] == sorted(written)
        assert proxy.hits > 5
    finally:
        proxy.close()


def test_a_server_that_does_not_answer_is_one_error_after_a_while(server):
    target, prefix = server
    proxy = FaultProxy(target, rate=1.0, kinds=("hang",), hang_s=5)
    one = object_archive(
        proxy.endpoint, prefix=prefix, patience_ms=300, timeouts=Timeouts(200, 200, 200), sleep=lambda _: None)
    try:
        with pytest.raises(
                ObjectStoreError, match=rf"cannot read s3://lake/{prefix}/{NAME} at {proxy.endpoint}: .*: Timeout$"):
            one.read(NAME)
    finally:
        proxy.close()


def test_a_server_that_is_down_is_one_error(credentials):
    one = object_archive("http://127.0.0.1:1", patience_ms=10, sleep=lambda _: None)
    where = r"s3://lake/one/archive/_staging at http://127.0.0.1:1"
    with pytest.raises(ObjectStoreError, match=rf"cannot list {where}: .*: Connection refused$"):
        one.hold()
    with pytest.raises(ObjectStoreError, match=r"\.\.\.: Connection refused$"):
        one.read("a" * 400)


def test_a_bucket_that_is_not_there_is_named(server):
    (host, port), _ = server
    one = object_archive(f"http://{host}:{port}", "missing")
    with pytest.raises(ObjectStoreError, match=r"s3://missing/one/archive/.* there is no such bucket"):
        one.hold()


def test_an_attempt_counts_as_left_over_after_a_day_of_the_servers_clock(fake):
    one = object_archive(fake.endpoint)
    one.create(DATA, ATTEMPT).close()
    assert one.left_over() == []
    fake.now += LEFT_OVER_MS // 1000 - 1
    assert one.left_over() == []
    fake.now += 1
    assert one.left_over() == [ATTEMPT]
    one.end_attempts(65536)
    assert one.left_over() == [ATTEMPT], "another attempt may be running"
    one.end_attempts(65536, ATTEMPT.name)
    assert one.left_over() == []


def test_credentials_without_rights_are_named(fake, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    with pytest.raises(ObjectStoreError, match=r"cannot list s3://lake/.*do not allow it.*AWS_ACCESS_KEY_ID"):
        object_archive(fake.endpoint).list("_manifests")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    one = object_archive(fake.endpoint)
    assert one.list("_manifests") == []
    with pytest.raises(ObjectStoreError, match=r"cannot write.*the credentials do not allow it"):
        one.hold()
    assert fake.buckets["lake"] == {}


def test_a_full_server_is_named_and_nothing_is_there(fake):
    fake.full = True
    one = object_archive(fake.endpoint, sleep=lambda _: None)
    with pytest.raises(ObjectStoreError, match=r"the store is full.*InsufficientStorage"):
        one.put_new(NAME, b"data")
    assert fake.buckets["lake"] == {}


def test_a_server_that_ignores_conditions_is_refused(fake):
    fake.ignores_conditions = True
    with pytest.raises(ConfigError, match="the server ignores If-None-Match"):
        object_archive(fake.endpoint).hold()
    assert fake.buckets["lake"] == {}


def test_each_body_has_a_checksum_that_the_server_compares(fake):
    object_archive(fake.endpoint).put_new(NAME, b"data")
    (_, _, headers), = [one for one in fake.requests if one[0] == "PUT"]
    assert {name.lower() for name in headers} >= {"x-amz-checksum-sha256", "if-none-match"}


# -- URLs


def test_endpoint_and_region_are_of_the_url_or_of_the_variables():
    variables = {"AWS_ENDPOINT_URL": "http://a:1", "AWS_DEFAULT_REGION": "eu-north-1"}
    place = place_of("s3://bucket/a/b/", variables)
    assert place == ("bucket", "a/b", "http://a:1", "eu-north-1")
    assert place_of(place.url, {}) == place, "tasks get the endpoint and the region of the driver"
    variables |= {"AWS_ENDPOINT_URL_S3": "http://b:1", "AWS_REGION": "eu-west-1"}
    assert place_of("s3://bucket", variables) == ("bucket", "", "http://b:1", "eu-west-1")
    assert place_of("s3://bucket?endpoint=https://c:2&region=x", variables) == ("bucket", "", "https://c:2", "x")
    assert place_of("s3://bucket", {}) == ("bucket", "", "", "us-east-1")


@pytest.mark.parametrize(("url", "why"), [
    ("s3://", "is not s3://BUCKET/PREFIX"), ("s3:///a", "is not s3://BUCKET/PREFIX"),
    ("s3://key:secret@bucket/a", "without a user"), ("s3://bucket/a?access_key=secret", "option access_key"),
    ("s3://bucket/a?endpoint=ftp://x", "the endpoint ftp://x is not"), ("s3://bucket/a?endpoint", "is not s3://"),
    ("gs://bucket/a", "gs: is not supported"), ("s3a://bucket/a", "s3a: is not supported"),
    ("hdfs://host/a", "hdfs: is not supported")])
def test_what_is_not_supported_is_refused_by_name_without_secrets(url, why):
    with pytest.raises(ConfigError, match=why) as caught:
        archive_at(url)
    assert "secret" not in str(caught.value)


def test_a_profile_is_refused_by_name(monkeypatch, credentials):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "work")
    with pytest.raises(ConfigError, match="AWS_PROFILE=work is not supported: set AWS_ACCESS_KEY_ID"):
        archive_at("s3://bucket/a")
