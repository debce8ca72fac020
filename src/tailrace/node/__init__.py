"""A store directory brought to life: the composition root below broker and tools."""
