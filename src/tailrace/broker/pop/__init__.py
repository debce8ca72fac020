"""POP consumption: the broker hands out messages for a time, and takes back what is not acknowledged."""
