"""PySpark's daemon for workers, without a traceback for each task whose rows Spark has stopped to read.

After ``show`` or ``limit`` Spark closes the connection to a worker that still writes, and PySpark prints the
BrokenPipeError of that worker. Spark starts this module as ``spark.python.daemon.module``.
"""

from __future__ import annotations

from typing import TextIO

from pyspark import daemon

__all__: list[str] = []


def _print(text: str, file: TextIO) -> None:
    """Do what ``print`` does where the daemon calls it, except for that traceback."""
    if not (text.startswith("PySpark daemon failed to flush") and "BrokenPipeError" in text):
        file.write(f"{text}\n")


if __name__ == "__main__":
    vars(daemon)["print"] = _print
    daemon.manager()
