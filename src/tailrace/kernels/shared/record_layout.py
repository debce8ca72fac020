"""Numbers of a record of the CommitLog, written by `make gen` from formats.commitlog; change them there.

The build replaces each name by its number. FIXED_SIZE is the size without hosts, body, topic and
properties; CRC_NAME the name of the checksum property as one number.
"""

AT_MAGIC = 4
AT_BODY_CRC = 8
AT_QUEUE_ID = 12
AT_FLAG = 16
AT_QUEUE_OFFSET = 20
AT_PHY_OFFSET = 28
AT_SYS_FLAG = 36
AT_BORN_TIMESTAMP = 40
HEAD_SIZE = 48
HOST_V4_SIZE = 8
HOST_V6_SIZE = 20
BORNHOST_V6 = 16
STOREHOST_V6 = 32
HOSTS_V6 = 48
STORE_TIME_SIZE = 8
AT_PREPARED = 4
AT_BODY_LENGTH = 12
BODY_HEAD_SIZE = 16
MAX_TOPIC_V1 = 127
PROPERTIES_LENGTH_SIZE = 2
MAX_PROPERTIES = 32767
FIXED_SIZE = 75
MIN_RECORD_SIZE = 91
BLANK_SIZE = 8
MAGIC_V1 = 3668123815
MAGIC_V2 = 3668123819
BLANK_MAGIC = 3419681172
CRC_SIZE = 20
CRC_NAME = 6872285576984474147
