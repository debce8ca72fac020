"""A process that adds the segments of an archive to its tables, one commit for each, and may be killed."""

from tailrace.config import BrokerConfig
from tailrace.env.filesystem import OsFileSystem
from tailrace.spark.lake import job
from tailrace.spark.lake.catalogue import Lake

FILES = OsFileSystem()


def add(path, target):
    job._GROUP = 1
    with Lake(target, "tailrace", "broker-a", FILES) as tables:
        job.LakeJob(path, target, tables, job.local_runner(FILES), at_once=1, broker=BrokerConfig()).step()
