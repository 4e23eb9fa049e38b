/* A disk that stands still: fdatasync, fsync and msync wait for as long as a file exists.
 * A signal interrupts them (EINTR).
 *
 *     SLOW_SYNC_FLAG=/path/of/flag LD_PRELOAD=slow_sync.so PROGRAM
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int stand_still(void)
{
    const char *flag = getenv("SLOW_SYNC_FLAG");
    struct timespec pause = {0, 5000000};
    while (flag && access(flag, F_OK) == 0)
        if (nanosleep(&pause, NULL) < 0)
            return -1;
    return 0;
}

#define SLOW(name, parameters, arguments) \
    int name parameters \
    { \
        static int(*real) parameters; \
        if (!real) \
            real = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        return stand_still() < 0 ? -1 : real arguments; \
    }

SLOW(fdatasync, (int fd), (fd))
SLOW(fsync, (int fd), (fd))
SLOW(msync, (void *at, size_t length, int flags), (at, length, flags))
