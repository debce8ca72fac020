"""The message store: CommitLog, ConsumeQueues, index, flush, dispatch and recovery."""
