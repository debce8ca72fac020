"""Transactional messages: half messages, their operations, and the checks of those that are pending.

docs/contributing/design/transactions.md describes the states of a half message, and the rules by which a committed
message is delivered once.
"""
