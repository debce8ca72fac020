"""A request from its arrival to its answer: bodies, replies that wait, threads, changes of state files."""
