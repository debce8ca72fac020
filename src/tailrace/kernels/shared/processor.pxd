# What the compiled kernels use of the processor. It changes how long a kernel takes, never what it returns.

cdef extern from *:
    """
    static inline void tailrace_prefetch(const void *address) {
    #if defined(__GNUC__) || defined(__clang__)
        __builtin_prefetch(address, 0, 2);  /* into the second cache, which can wait for more lines than the first */
        __asm__ volatile("");  /* without it GCC takes a function that only prefetches for one without an effect */
    #else
        (void)address;
    #endif
    }
    """
    # Start to load the cache line of an address. An address outside of the memory of the process does nothing.
    void prefetch "tailrace_prefetch"(const void *address) noexcept nogil
