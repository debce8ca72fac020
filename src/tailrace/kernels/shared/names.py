# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Recognise names of properties and topics. `make gen` writes this file from ``formats.names``."""

import cython


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_tags(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TAGS."""
    return (
        n == 4 and b[p + 0] == 84 and b[p + 1] == 65 and b[p + 2] == 71 and b[p + 3] == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_keys(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are KEYS."""
    return (
        n == 4 and b[p + 0] == 75 and b[p + 1] == 69 and b[p + 2] == 89 and b[p + 3] == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_uniq_key(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are UNIQ_KEY."""
    return (
        n == 8 and b[p + 0] == 85 and b[p + 1] == 78 and b[p + 2] == 73 and b[p + 3] == 81 and b[p + 4] == 95
        and b[p + 5] == 75 and b[p + 6] == 69 and b[p + 7] == 89
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_delay(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are DELAY."""
    return (
        n == 5 and b[p + 0] == 68 and b[p + 1] == 69 and b[p + 2] == 76 and b[p + 3] == 65 and b[p + 4] == 89
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_inner_multi_dispatch(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are INNER_MULTI_DISPATCH."""
    return (
        n == 20 and b[p + 0] == 73 and b[p + 1] == 78 and b[p + 2] == 78 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 77 and b[p + 7] == 85 and b[p + 8] == 76 and b[p + 9] == 84 and b[p +
        10] == 73 and b[p + 11] == 95 and b[p + 12] == 68 and b[p + 13] == 73 and b[p + 14] == 83 and b[p + 15]
        == 80 and b[p + 16] == 65 and b[p + 17] == 84 and b[p + 18] == 67 and b[p + 19] == 72
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_inner_multi_queue_offset(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are INNER_MULTI_QUEUE_OFFSET."""
    return (
        n == 24 and b[p + 0] == 73 and b[p + 1] == 78 and b[p + 2] == 78 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 77 and b[p + 7] == 85 and b[p + 8] == 76 and b[p + 9] == 84 and b[p +
        10] == 73 and b[p + 11] == 95 and b[p + 12] == 81 and b[p + 13] == 85 and b[p + 14] == 69 and b[p + 15]
        == 85 and b[p + 16] == 69 and b[p + 17] == 95 and b[p + 18] == 79 and b[p + 19] == 70 and b[p + 20] ==
        70 and b[p + 21] == 83 and b[p + 22] == 69 and b[p + 23] == 84
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_crc_property(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are __CRC32#."""
    return (
        n == 8 and b[p + 0] == 95 and b[p + 1] == 95 and b[p + 2] == 67 and b[p + 3] == 82 and b[p + 4] == 67
        and b[p + 5] == 51 and b[p + 6] == 50 and b[p + 7] == 35
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_real_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are REAL_TOPIC."""
    return (
        n == 10 and b[p + 0] == 82 and b[p + 1] == 69 and b[p + 2] == 65 and b[p + 3] == 76 and b[p + 4] == 95
        and b[p + 5] == 84 and b[p + 6] == 79 and b[p + 7] == 80 and b[p + 8] == 73 and b[p + 9] == 67
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_real_qid(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are REAL_QID."""
    return (
        n == 8 and b[p + 0] == 82 and b[p + 1] == 69 and b[p + 2] == 65 and b[p + 3] == 76 and b[p + 4] == 95
        and b[p + 5] == 81 and b[p + 6] == 73 and b[p + 7] == 68
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_out_ms(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_OUT_MS."""
    return (
        n == 12 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 79 and b[p + 7] == 85 and b[p + 8] == 84 and b[p + 9] == 95 and b[p +
        10] == 77 and b[p + 11] == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_delay_sec(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_DELAY_SEC."""
    return (
        n == 15 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68 and b[p + 7] == 69 and b[p + 8] == 76 and b[p + 9] == 65 and b[p +
        10] == 89 and b[p + 11] == 95 and b[p + 12] == 83 and b[p + 13] == 69 and b[p + 14] == 67
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_delay_ms(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_DELAY_MS."""
    return (
        n == 14 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68 and b[p + 7] == 69 and b[p + 8] == 76 and b[p + 9] == 65 and b[p +
        10] == 89 and b[p + 11] == 95 and b[p + 12] == 77 and b[p + 13] == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_deliver_ms(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_DELIVER_MS."""
    return (
        n == 16 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68 and b[p + 7] == 69 and b[p + 8] == 76 and b[p + 9] == 73 and b[p +
        10] == 86 and b[p + 11] == 69 and b[p + 12] == 82 and b[p + 13] == 95 and b[p + 14] == 77 and b[p + 15]
        == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_enqueue_ms(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_ENQUEUE_MS."""
    return (
        n == 16 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 69 and b[p + 7] == 78 and b[p + 8] == 81 and b[p + 9] == 85 and b[p +
        10] == 69 and b[p + 11] == 85 and b[p + 12] == 69 and b[p + 13] == 95 and b[p + 14] == 77 and b[p + 15]
        == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_dequeue_ms(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_DEQUEUE_MS."""
    return (
        n == 16 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68 and b[p + 7] == 69 and b[p + 8] == 81 and b[p + 9] == 85 and b[p +
        10] == 69 and b[p + 11] == 85 and b[p + 12] == 69 and b[p + 13] == 95 and b[p + 14] == 77 and b[p + 15]
        == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_roll_times(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_ROLL_TIMES."""
    return (
        n == 16 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 82 and b[p + 7] == 79 and b[p + 8] == 76 and b[p + 9] == 76 and b[p +
        10] == 95 and b[p + 11] == 84 and b[p + 12] == 73 and b[p + 13] == 77 and b[p + 14] == 69 and b[p + 15]
        == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_del_uniqkey(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are TIMER_DEL_UNIQKEY."""
    return (
        n == 17 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68 and b[p + 7] == 69 and b[p + 8] == 76 and b[p + 9] == 95 and b[p +
        10] == 85 and b[p + 11] == 78 and b[p + 12] == 73 and b[p + 13] == 81 and b[p + 14] == 75 and b[p + 15]
        == 69 and b[p + 16] == 89
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_schedule_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are SCHEDULE_TOPIC_XXXX."""
    return (
        n == 19 and b[p + 0] == 83 and b[p + 1] == 67 and b[p + 2] == 72 and b[p + 3] == 69 and b[p + 4] == 68
        and b[p + 5] == 85 and b[p + 6] == 76 and b[p + 7] == 69 and b[p + 8] == 95 and b[p + 9] == 84 and b[p +
        10] == 79 and b[p + 11] == 80 and b[p + 12] == 73 and b[p + 13] == 67 and b[p + 14] == 95 and b[p + 15]
        == 88 and b[p + 16] == 88 and b[p + 17] == 88 and b[p + 18] == 88
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def is_timer_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` are rmq_sys_wheel_timer."""
    return (
        n == 19 and b[p + 0] == 114 and b[p + 1] == 109 and b[p + 2] == 113 and b[p + 3] == 95 and b[p + 4] ==
        115 and b[p + 5] == 121 and b[p + 6] == 115 and b[p + 7] == 95 and b[p + 8] == 119 and b[p + 9] == 104
        and b[p + 10] == 101 and b[p + 11] == 101 and b[p + 12] == 108 and b[p + 13] == 95 and b[p + 14] == 116
        and b[p + 15] == 105 and b[p + 16] == 109 and b[p + 17] == 101 and b[p + 18] == 114
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_inner_multi(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with INNER_MULTI_."""
    return (
        n >= 12 and b[p + 0] == 73 and b[p + 1] == 78 and b[p + 2] == 78 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 77 and b[p + 7] == 85 and b[p + 8] == 76 and b[p + 9] == 84 and b[p +
        10] == 73 and b[p + 11] == 95
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_timer_delivery(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with TIMER_D."""
    return (
        n >= 7 and b[p + 0] == 84 and b[p + 1] == 73 and b[p + 2] == 77 and b[p + 3] == 69 and b[p + 4] == 82
        and b[p + 5] == 95 and b[p + 6] == 68
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_transaction(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with TRAN_."""
    return (
        n >= 5 and b[p + 0] == 84 and b[p + 1] == 82 and b[p + 2] == 65 and b[p + 3] == 78 and b[p + 4] == 95
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_lite(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with __LI."""
    return (
        n >= 4 and b[p + 0] == 95 and b[p + 1] == 95 and b[p + 2] == 76 and b[p + 3] == 73
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_system_property(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with _SYS."""
    return (
        n >= 4 and b[p + 0] == 95 and b[p + 1] == 83 and b[p + 2] == 89 and b[p + 3] == 83
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_retry_group_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with %RETRY%."""
    return (
        n >= 7 and b[p + 0] == 37 and b[p + 1] == 82 and b[p + 2] == 69 and b[p + 3] == 84 and b[p + 4] == 82
        and b[p + 5] == 89 and b[p + 6] == 37
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_dlq_group_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with %DLQ%."""
    return (
        n >= 5 and b[p + 0] == 37 and b[p + 1] == 68 and b[p + 2] == 76 and b[p + 3] == 81 and b[p + 4] == 37
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_system_topic(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with rmq_sys_."""
    return (
        n >= 8 and b[p + 0] == 114 and b[p + 1] == 109 and b[p + 2] == 113 and b[p + 3] == 95 and b[p + 4] ==
        115 and b[p + 5] == 121 and b[p + 6] == 115 and b[p + 7] == 95
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def begins_lmq(
    b: cython.const[cython.uchar][::1], p: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.bint:
    """Return True if the ``n`` bytes at ``p`` begin with %LMQ%."""
    return (
        n >= 5 and b[p + 0] == 37 and b[p + 1] == 76 and b[p + 2] == 77 and b[p + 3] == 81 and b[p + 4] == 37
    )
