/* A disk that hangs: fdatasync, fsync and msync wait while a file exists; pread waits while another does.
 * A signal interrupts them (EINTR), whenever it comes.
 *
 *     SLOW_SYNC_FLAG=/path/of/flag SLOW_READ_FLAG=/path/of/another LD_PRELOAD=slow_sync.so PROGRAM
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static int stand_still(const char *variable)
{
    const char *flag = getenv(variable);
    struct timespec pause = {0, 5000000};
    sigset_t all, before;
    int waited = 0;
    /* Between two pauses a signal is blocked: it interrupts the next one. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (waited == 0 && flag && access(flag, F_OK) == 0)
        waited = ppoll(NULL, 0, &pause, &before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return waited;
}

#define SLOW(kind, flag, name, parameters, arguments) \
    kind name parameters \
    { \
        static kind(*real) parameters; \
        if (!real) \
            real = (kind(*) parameters)dlsym(RTLD_NEXT, #name); \
        return stand_still(flag) < 0 ? -1 : real arguments; \
    }

SLOW(int, "SLOW_SYNC_FLAG", fdatasync, (int fd), (fd))
SLOW(int, "SLOW_SYNC_FLAG", fsync, (int fd), (fd))
SLOW(int, "SLOW_SYNC_FLAG", msync, (void *at, size_t length, int flags), (at, length, flags))
SLOW(ssize_t, "SLOW_READ_FLAG", pread64, (int fd, void *to, size_t length, off64_t at), (fd, to, length, at))
