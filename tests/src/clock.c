/* Preloaded into a redis-server: its wall clock shows the microseconds in a file, and stands still until they change.
   The monotonic clock stays real, so that the server's own timers go on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
        void *page = mmap(NULL, 24, PROT_READ, MAP_SHARED, open(getenv("RATELIMIT_TEST_CLOCK"), O_RDONLY | O_CLOEXEC), 0);
        if (page == MAP_FAILED) abort();
        slots = page;
    }
    /* The writer fills the first slot, then the second. Where both agree, neither was half written. */
    uint64_t shown;
    do {
        shown = __atomic_load_n(&slots[1], __ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&slots[0], __ATOMIC_ACQUIRE) != shown);
    /* The third slot says how far each reading moves the clock. What it has moved is kept until the clock is set. */
    static uint64_t set, moved;
    if (__atomic_exchange_n(&set, shown, __ATOMIC_ACQ_REL) != shown) __atomic_store_n(&moved, 0, __ATOMIC_RELEASE);
    return shown + __atomic_add_fetch(&moved, __atomic_load_n(&slots[2], __ATOMIC_ACQUIRE), __ATOMIC_ACQ_REL);
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

/* A Valkey that counts the processor's ticks asks for the wall clock once a millisecond only, and adds ticks in between. It
   looks in this file whether it may; without it, it asks each time. */
static FILE *open_other(const char *name, const char *path, const char *mode) {
    if (!strcmp(path, "/proc/cpuinfo")) return NULL;
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *))dlsym(RTLD_NEXT, name);
    return next(path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) { return open_other("fopen", path, mode); }

FILE *fopen64(const char *restrict path, const char *restrict mode) { return open_other("fopen64", path, mode); }
