"""Places that a job on Spark cannot use are named before Spark starts."""

import logging
import signal

import pytest
from typer.testing import CliRunner

from tailrace.cli.app import app
from tailrace.cli.pipeline import run_job
from tailrace.cli.signals import Stopped

pytest.importorskip("pyspark")
Py4JNetworkError = pytest.importorskip("py4j.protocol").Py4JNetworkError


@pytest.mark.parametrize("error", [ConnectionRefusedError("py4j"), Py4JNetworkError("Answer from Java side is empty")])
def test_a_signal_ends_a_job_with_its_own_code_although_sparks_jvm_got_it_too(monkeypatch, caplog, error):
    class Ended:
        def stop(self):
            logging.getLogger("py4j.java_gateway").error("Exception while sending command.")
            raise error

    monkeypatch.setattr("tailrace.spark.session.local_session", lambda *_, **__: Ended())
    with pytest.raises(SystemExit) as ended, run_job("audit", "local[1]", None):
        raise Stopped(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not caplog.records


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Run a job in a directory with a store, an empty directory and a file; return its exit code and its error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    monkeypatch.setattr("tailrace.spark.session.local_session", lambda *_, **__: pytest.fail("Spark starts"))

    def run(*arguments):
        done = CliRunner().invoke(app, ["pipeline", *arguments])
        return done.exit_code, done.stderr

    return run


@pytest.mark.parametrize(("arguments", "code", "complaint"), [
    (("archive", "store", "file"), 1, "file: Not a directory"),
    (("archive", "store", "file/below/it"), 1, "file: Not a directory"),
    (("archive", "store", "store", "file"), 2, "the name 'store' is not the name of one store"),
    (("archive", "store", "other", "file"), 1, "file: Not a directory"),
    (("restore", "empty", "file"), 1, "file: Not a directory"),
    (("restore", "empty", "new"), 1, "empty is not an archive"),
    *(((name, "store", "--out", place), code, complaint) for name in ("audit", "traffic", "lag", "timers", "retention")
      for place, code, complaint in (
          ("empty", 2, "empty exists already"), ("file", 2, "file exists already"), ("file/x", 1, "file: Not a"))),
    *(((name, "store", *more, "--archive", place), 1, f"{place} is not an archive: it has no _manifests")
      for name, more in (("traffic", ()), ("retention", ()), ("replay", ("--topic", "t", "--to-store", "new")))
      for place in ("empty", "file", "gone")),
])
def test_a_place_that_cannot_be_used_is_one_line_before_spark_starts(job, tmp_path, arguments, code, complaint):
    found, error = job(*arguments)
    assert (found, error.count("\n")) == (code, 1)
    assert complaint in error
    assert not (tmp_path / "new").exists()
