/* Preloaded into a redis-server: its wall clock shows the microseconds in a file, and stands still until they change.
   The monotonic clock stays real, so that the server's own timers go on. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef __linux__
#error "a controlled clock is preloaded with LD_PRELOAD: it needs Linux"
#endif

static uint64_t now(void) {
    static uint64_t *slots;
    if (!slots) {
        void *page = mmap(NULL, 16, PROT_READ, MAP_SHARED, open(getenv("RATELIMIT_TEST_CLOCK"), O_RDONLY | O_CLOEXEC), 0);
        if (page == MAP_FAILED) abort();
        slots = page;
    }
    /* The writer fills the first slot, then the second. Where both agree, neither was half written. */
    for (;;) {
        uint64_t second = __atomic_load_n(&slots[1], __ATOMIC_ACQUIRE);
        if (__atomic_load_n(&slots[0], __ATOMIC_ACQUIRE) == second) return second;
    }
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    uint64_t micros = now();
    *tv = (struct timeval){.tv_sec = micros / 1000000, .tv_usec = micros % 1000000};
    return 0;
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE) return syscall(SYS_clock_gettime, id, ts);
    uint64_t micros = now();
    *ts = (struct timespec){.tv_sec = micros / 1000000, .tv_nsec = micros % 1000000 * 1000};
    return 0;
}

time_t time(time_t *seconds) {
    time_t now_seconds = now() / 1000000;
    if (seconds) *seconds = now_seconds;
    return now_seconds;
}
