"""Names of files, ports, topics and brokers of a `World`."""

ROOT = "/store"
PORT, HA_PORT, NAMESRV_PORT = 10911, 10912, 9876
TOPIC, GROUP, QUEUES = "orders", "readers", 2
PASSING = "passing"
"""A topic that is deleted and created again, see `replication_topics`."""
DEALS, DEALERS = "deals", "dealers"
"""Topic and producers of transactions, see `replication_deals`."""
TASKS, WORKERS = "tasks", "workers"
"""Topic and group that pop, see `replication_pops`."""
NAMES = "DefaultCluster", "broker-a"
"""Cluster and name of the brokers."""
