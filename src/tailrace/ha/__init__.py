"""Replication by RocketMQ's classic HA protocol: a master's log is copied to slaves, byte for byte."""
