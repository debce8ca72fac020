"""Lite topics: many small queues of one parent topic, to which clients subscribe one by one."""
