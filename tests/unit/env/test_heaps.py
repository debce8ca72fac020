"""Heaps of the C library: how many the threads of a process have."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, tempfile, threading
from tailrace.env.linux_calls import few_heaps
if "few" in sys.argv:
    few_heaps()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.malloc_info.argtypes = (ctypes.c_size_t,), (ctypes.c_int, ctypes.c_void_p)
libc.fclose.argtypes = (ctypes.c_void_p,)
together, end = threading.Barrier(13), threading.Event()
def work():
    libc.malloc(2000)
    together.wait()
    end.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
together.wait()
with tempfile.NamedTemporaryFile() as file:
    stream = libc.fopen(file.name.encode(), b"w")
    libc.malloc_info(0, stream)
    libc.fclose(stream)
    print(file.read().decode())
end.set()
"""


def heaps(*arguments):
    said = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True)
    return len(re.findall("<heap ", said.stdout))


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="the C library is not that of GNU")
def test_many_threads_share_two_heaps():
    assert heaps() > 4, "else the test shows nothing"
    assert heaps("few") == 2
