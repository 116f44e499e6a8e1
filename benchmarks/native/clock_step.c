/* Steps the wall clock of the processes that load it (LD_PRELOAD), all by the same amount and at once.
 *
 *     gcc -O2 -shared -fPIC -o clock_step.so clock_step.c -ldl
 *
 * CLOCK_STEP_FILE names a file of eight bytes: how many nanoseconds the clock is ahead, as a signed number.
 * The monotonic clock is left alone, as it is when a machine's clock is set.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("CLOCK_STEP_FILE");
    int file;
    void *mapped;

    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (name == NULL || (file = open(name, O_RDONLY | O_CLOEXEC)) < 0)
        return;
    mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        ahead = mapped;
}

int clock_gettime(clockid_t which, struct timespec *now)
{
    int result;

    if (real_gettime == NULL)
        real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    result = real_gettime(which, now);
    if (result == 0 && ahead != NULL && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) {
        int64_t at = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *ahead;
        now->tv_sec = at / 1000000000;
        now->tv_nsec = at % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    int result = clock_gettime(CLOCK_REALTIME, &at);

    (void)zone;
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now)
{
    struct timespec at;

    clock_gettime(CLOCK_REALTIME, &at);
    if (now != NULL)
        *now = at.tv_sec;
    return at.tv_sec;
}
