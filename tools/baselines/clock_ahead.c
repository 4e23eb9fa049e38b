/* CLOCK_MONOTONIC, and the time of day, run ahead by as many seconds as a file says, from one moment to the next.
 *
 *     CLOCK_AHEAD_FILE=/path/of/16/bytes LD_PRELOAD=clock_ahead.so PROGRAM
 *
 * The file holds two int64: seconds of CLOCK_MONOTONIC, and of the time of day, which may be below zero.
 * Deadlines are taken back by as much, since the kernel's own clocks stay as they are: waits take the time
 * that they would. Those by the time of day are larger than any uptime.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t no_seconds[2];
static const volatile int64_t *ahead = no_seconds;

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("CLOCK_AHEAD_FILE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        ahead = at;
    if (fd >= 0)
        close(fd);
}

static int is_monotonic(const struct timespec *deadline)
{
    return deadline->tv_sec < 1000000000;
}

static struct timespec back(const struct timespec *deadline)
{
    struct timespec real = *deadline;
    real.tv_sec -= ahead[!is_monotonic(deadline)];
    if (real.tv_sec < 0)
        real.tv_sec = 0;
    return real;
}

#define REAL(name, ...) \
    static int (*real)(__VA_ARGS__); \
    if (!real) \
        real = (int (*)(__VA_ARGS__))find(#name)

static void *find(const char *name)
{
    /* The unversioned name of a condition's wait may be that of another structure. */
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    REAL(clock_gettime, clockid_t, struct timespec *);
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_MONOTONIC)
        now->tv_sec += ahead[0];
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += ahead[1];
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    REAL(gettimeofday, struct timeval *, void *);
    int result = real(now, zone);
    if (result == 0)
        now->tv_sec += ahead[1];
    return result;
}

time_t time(time_t *at)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    REAL(timespec_get, struct timespec *, int);
    int result = real(now, base);
    if (result == TIME_UTC)
        now->tv_sec += ahead[1];
    return result;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    REAL(clock_nanosleep, clockid_t, int, const struct timespec *, struct timespec *);
    struct timespec deadline = *until;
    if (flags & TIMER_ABSTIME)
        deadline = back(until);
    return real(clock, flags, &deadline, left);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    REAL(sem_clockwait, sem_t *, clockid_t, const struct timespec *);
    struct timespec deadline = back(until);
    return real(semaphore, clock, &deadline);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *until)
{
    REAL(pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    struct timespec deadline = back(until);
    return real(condition, mutex, clock, &deadline);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    REAL(pthread_cond_timedwait, pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec deadline = back(until);
    return real(condition, mutex, &deadline);
}
