"""How long a client of a catalogue waits. PyIceberg's own clients of REST and Hive wait for ever."""

from typing import Final

__all__ = ["ANSWER_S", "CONNECT_S"]

CONNECT_S: Final = 10
"""Seconds for a connection."""
ANSWER_S: Final = 60
"""Seconds in which no byte of an answer arrives."""
