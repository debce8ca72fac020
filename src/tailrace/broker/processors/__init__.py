"""Processors: plain functions of a channel and a request, tested without sockets."""
