"""The message store: CommitLog, ConsumeQueues, index, flush, dispatch and recovery."""

from tailrace import kernels

kernels.load("append", "store")
