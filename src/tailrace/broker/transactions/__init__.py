"""Transactional messages: half messages, their operations, and the checks of those that are pending.

docs/design/transactions.md has the states of a half message and the rules that deliver a committed
message once.
"""
