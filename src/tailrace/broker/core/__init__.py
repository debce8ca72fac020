"""The parts that all requests of a broker share, and the ports on which it listens."""
