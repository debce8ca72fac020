"""Requests about messages: send, pull, query, send back, reply, recall, ends of transactions."""
