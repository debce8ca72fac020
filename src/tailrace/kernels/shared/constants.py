"""Numbers that kernels and their callers share. The build replaces each name by its number.

The columns of the rows of ``record.scan`` have no prefix, because they are used most.
"""

# Columns of the rows of ``record.scan``.
PHY = 0
SIZE = 1
QUEUE_ID = 2
QUEUE_OFFSET = 3
SYS_FLAG = 4
STORE_TIMESTAMP = 5
TAGS_CODE = 6
BORN_TIMESTAMP = 7
FLAG = 8
BODY_CRC = 9
RECONSUME_TIMES = 10
PREPARED = 11
BODY_POS = 12
BODY_LEN = 13
TOPIC_POS = 14
TOPIC_LEN = 15
PROPS_POS = 16
PROPS_LEN = 17
BORN_HOST_POS = 18
STORE_HOST_POS = 19
QUEUE_HASH = 20
DELAY_LEVEL = 21
KEYS_POS = 22
KEYS_LEN = 23
UNIQ_POS = 24
UNIQ_LEN = 25
TAGS_POS = 26
TAGS_LEN = 27
LMQ_POS = 28
LMQ_LEN = 29
LMQ_OFFSETS_POS = 30
LMQ_OFFSETS_LEN = 31
KIND = 32  # what dispatch does besides a queue unit: WAITS, LMQ, INNER_BATCH and ROLLED_BACK, 0 for nothing
COLUMNS = 33

# What ``record.scan`` checks and leaves out; ``check`` is a sum of these.
CHECK_BODY_CRC = 1
CHECK_PHY_OFFSET = 2
CHECK_PROP_CRC = 4
CHECK_ALL = 7
LEAVE_PROPERTIES = 8  # do not read the properties; rows have none of the known ones
LEAVE_HASHES = 16  # do not fill queue hash and tags code

# Why a scan of the log stopped.
REASON_END = 0  # everything up to `until` was read
REASON_ROWS_FULL = 1
REASON_BLANK = 2  # the blank record that ends a file is at `stop`
REASON_ZERO = 3  # zeros at `stop`: never written
REASON_BAD_MAGIC = 4
REASON_BAD_LENGTH = 5  # lengths that do not add up
REASON_BAD_CRC = 6
REASON_BAD_PHY_OFFSET = 7
REASON_SHORT = 8  # the record ends after `until`
REASON_BAD_PROP_CRC = 9
REASON_TORN = 10  # set by store.walk, not by scan: topic or properties have a NUL byte

# Why a reader of units of a ConsumeQueue stopped.
UNITS_END = 0  # all units were read
UNITS_FULL = 1  # there is no room for the next record
UNITS_ELSEWHERE = 2  # the next unit's record starts outside of the buffer
UNITS_CUT_OFF = 3  # the next unit's record ends after the buffer
UNITS_DAMAGED = 4  # the bytes are not the record of the next unit
UNITS_COLD = 5  # the next unit's record is not in the page cache

# Columns of the places of ``unit_records``.
PLACE_AT = 0  # index of the record in the buffer
PLACE_SIZE = 1
PLACE_OFFSET = 2  # queue offset of the unit
PLACE_COLUMNS = 3

# Columns of the rows of ``timer_records``: of due timers (T_*) and of units to put into the wheel (E_*).
T_IDENTITY = 0  # hash of REAL_TOPIC, UNIQ_KEY and TIMER_OUT_MS, above 0
T_POSITION = 1  # position in the log
T_SLOT = 2  # the unit's slot time; the first three columns are the rows of the table of delivered timers
T_SIZE = 3
T_WROTE = 4  # the unit's write time
T_POS = 5  # index of the record in the buffer, below 0 if it could not be read; filled by the caller
T_PLAIN = 6  # 1: all other columns are valid
T_OUT = 7  # TIMER_OUT_MS
T_DUE = 8  # the millisecond at which it is due
T_QUEUE_ID = 9  # REAL_QID
T_QUEUE_HASH = 10  # hash of REAL_TOPIC and REAL_QID
T_QUEUE = 11  # number of its queue in the array of queue offsets; filled by the caller
T_BORN_LEN = 12
T_BODY_POS = 13
T_BODY_LEN = 14
T_PROPS_POS = 15
T_PROPS_LEN = 16
T_TOPIC_POS = 17  # of REAL_TOPIC
T_TOPIC_LEN = 18
T_KEY_POS = 19  # of UNIQ_KEY
T_KEY_LEN = 20
T_FAR = 21  # 1: a far timer
T_ASK = 22  # 1: the log tells whether it was delivered or rolled
T_COLUMNS = 23
E_KIND = 0  # ODD, TIMER or DELETE
E_OUT = 1  # TIMER_OUT_MS
E_TOPIC_HASH = 2  # Java's, of REAL_TOPIC
E_TOPIC = 3  # another hash of REAL_TOPIC, an odd number
E_TOPIC_POS = 4
E_TOPIC_LEN = 5
E_OFFSET = 6  # in the timer queue; filled by the caller, as are those that follow
E_POSITION = 7  # position in the log
E_SIZE = 8
E_POS = 9  # index of the record in the buffer, below 0 if it could not be read
E_COLUMNS = 10

# Values of E_KIND.
E_ODD = 0
E_TIMER = 1
E_DELETE = 2

# Why a replay of the timer log stopped, and a length without a limit.
REPLAY_DONE = 0
REPLAY_BEGINS_ANEW = 1
REPLAY_BROKEN = 2
REPLAY_TAKEN = 3
REPLAY_ENDLESS = 0x7FFFFFFFFFFFFFFF

# Columns of the numbers of ``column_records``.
N_PHY = 0
N_SIZE = 1  # 0: the row is skipped
N_MAGIC = 2
N_BODY_CRC = 3
N_QUEUE_ID = 4
N_FLAG = 5
N_QUEUE_OFFSET = 6
N_SYS_FLAG = 7
N_BORN_TIMESTAMP = 8
N_STORE_TIMESTAMP = 9
N_RECONSUME_TIMES = 10
N_PREPARED = 11
N_COLUMNS = 12

# Columns of the rows of ``send_lane``, one plain send or batch each, the number of rows, and the most messages of the
# batches of one call.
S_END = 0  # index after its frame
S_OPAQUE = 1
S_BINARY = 2  # 1: its header is binary, and so is its answer
S_QUEUE = 3  # number of its queue among those of the rows
S_QUEUE_ID = 4
S_SYS_FLAG = 5
S_BORN_TIMESTAMP = 6
S_FLAG = 7
S_RECONSUME_TIMES = 8
S_BODY = 9
S_BODY_SIZE = 10
S_UNESCAPED = 11  # 1: its properties are in the buffer of unescaped texts, 0: in the frame
S_PROPERTIES = 12
S_PROPERTIES_SIZE = 13
S_KEY = 14  # of its unique key, in the same buffer; -1: the key is made
S_KEY_SIZE = 15  # or the number of the key that is made
S_PHY_OFFSET = 16  # this and the next ones are filled by the put
S_QUEUE_OFFSET = 17
S_SIZE = 18  # of its records
S_MESSAGES = 19
S_BOUND = 20  # greatest number of bytes that its records take
S_POSITIONS = 21  # index of the first position of a batch among all positions
S_COLUMNS = 22
SENDS_MAX = 64
BATCHES_MAX = 1024

# What is done with a message besides keeping it, from its properties; 0 for a plain message. Which name has which
# flag is in ``formats.names.MARKS``.
WAITS = 1  # it has a delivery time or a delay level
LMQ = 2  # it names LMQ queues, or queue offsets in them
HALF = 4  # it may be a half message
LITE = 8
PRIORITY = 16
ALONE = 31  # each flag so far: a batch cannot honour such a property
SHARDED = 32  # it has an ordering key
DELAYED = 64  # it counts as delayed
NAMES = 128  # it names a topic, a group or a client, which its user must be allowed to name
OVERWRITTEN = 256  # it has what only a broker sets
NO_WAIT = 512  # its producer does not wait for the sync
RESERVED = 1024  # it has another property of RocketMQ's own
IRREGULAR = 2048  # a property has no name, no value or no end
INNER_BATCH = 4096  # by its system flags, as the next one
ROLLED_BACK = 8192

# Why a row of ``table_records`` is refused.
REFUSED_TAG_SEPARATOR = 1
REFUSED_KEY_EMPTY = 2
REFUSED_KEY_BLANK = 3
REFUSED_KEY_SEPARATOR = 4
REFUSED_PROPERTY_EMPTY = 5
REFUSED_PROPERTY_SEPARATOR = 6
REFUSED_PROPERTY_TWICE = 7
REFUSED_TOO_LONG = 8
