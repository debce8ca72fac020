"""Processors: they serve requests, as plain functions of a channel and a request that need no socket."""
