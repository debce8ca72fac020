# What the compiled kernels take from C. It changes how long a kernel takes, never what it returns.

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
    /* A compiler makes one or two instructions of each of these, because all bytes are at one address. */
    static inline unsigned int tailrace_load32(const unsigned char *p) {
        return (unsigned int)p[0] << 24 | (unsigned int)p[1] << 16 | (unsigned int)p[2] << 8 | p[3];
    }
    static inline long long tailrace_load64(const unsigned char *p) {
        return (long long)(
            (unsigned long long)p[0] << 56 | (unsigned long long)p[1] << 48 | (unsigned long long)p[2] << 40
            | (unsigned long long)p[3] << 32 | (unsigned long long)p[4] << 24 | (unsigned long long)p[5] << 16
            | (unsigned long long)p[6] << 8 | p[7]);
    }
    static inline void tailrace_store32(unsigned char *p, unsigned int v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    static inline void tailrace_store64(unsigned char *p, unsigned long long v) {
        p[0] = v >> 56; p[1] = v >> 48; p[2] = v >> 40; p[3] = v >> 32;
        p[4] = v >> 24; p[5] = v >> 16; p[6] = v >> 8; p[7] = v;
    }
    """
    # Start to load the cache line of an address. An address outside of the memory of the process does nothing.
    void prefetch "tailrace_prefetch"(const void *address) noexcept nogil
    # Big-endian numbers at an address.
    unsigned int load32 "tailrace_load32"(const unsigned char *at) noexcept nogil
    long long load64 "tailrace_load64"(const unsigned char *at) noexcept nogil
    void store32 "tailrace_store32"(unsigned char *at, unsigned int value) noexcept nogil
    void store64 "tailrace_store64"(unsigned char *at, unsigned long long value) noexcept nogil
