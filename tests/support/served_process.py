"""`tailrace serve` as a process with a file of settings, for tests of what such a file does."""

import contextlib
import subprocess

import commands
from java_peer import properties


class ServedProcess:
    """Its addresses and its log."""

    def __init__(self, process, log, words, config):
        self.process, self._log, self.config, self.words = process, log, config, words
        self.broker, self.namesrv = (words[name] for name in ("broker", "namesrv"))

    def log(self):
        return self._log.read_text()


@contextlib.contextmanager
def served_process(path, settings, *options, env=None):
    """`tailrace serve` on ``path``/store with these settings until the block ends."""
    config = properties(path / "serve.conf", settings)
    log = path / "serve.log"
    words = [
        "serve", path / "store", "--listen", "127.0.0.1:0",
        *(() if "--namesrv-listen" in options else ("--namesrv-listen", "127.0.0.1:0")), "--config", config, *options]
    with open(log, "w") as out, commands.start(*words, stderr=out, env=env) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("ready "), log.read_text()
            yield ServedProcess(process, log, dict(word.split("=", 1) for word in line.split()[1:]), config)
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
