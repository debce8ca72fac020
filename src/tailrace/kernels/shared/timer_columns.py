"""Columns of the rows of ``kernels.timer_records``. The build replaces each name by its number."""

_T_PLAIN = 0  # 1: all other columns are valid
_T_OUT = 1  # TIMER_OUT_MS
_T_DUE = 2  # the millisecond at which it is due
_T_QUEUE_ID = 3  # REAL_QID
_T_IDENTITY = 4  # hash of REAL_TOPIC, UNIQ_KEY and TIMER_OUT_MS, above 0
_T_QUEUE_HASH = 5  # hash of REAL_TOPIC and REAL_QID
_T_POS = 6
_T_BORN_LEN = 7
_T_BODY_POS = 8
_T_BODY_LEN = 9
_T_PROPS_POS = 10
_T_PROPS_LEN = 11
_T_TOPIC_POS = 12  # of REAL_TOPIC
_T_TOPIC_LEN = 13
_T_KEY_POS = 14  # of UNIQ_KEY
_T_KEY_LEN = 15
_T_WROTE = 16  # the unit's write time; filled by the caller
_T_QUEUE = 17  # number of its queue in the array of queue offsets; filled by the caller
_COLUMNS = 18
_E_KIND = 0  # ODD, TIMER or DELETE
_E_OUT = 1  # TIMER_OUT_MS
_E_TOPIC_HASH = 2  # Java's, of REAL_TOPIC
_E_TOPIC = 3  # another hash of REAL_TOPIC, an odd number
_E_TOPIC_POS = 4
_E_TOPIC_LEN = 5
_ENQUEUE_COLUMNS = 6
