/* A sender on an open schedule, one datagram at a time, evenly: the ordinary day.
 *
 *     pace SOCKET TEMPLATE STAMP_AT TIMESTAMP_AT RATE COUNT
 *
 * TEMPLATE is a file with the datagram. At STAMP_AT each gets the time at which it was due, as 19 digits of
 * nanoseconds since the epoch; at TIMESTAMP_AT, unless that is negative, the same as milliseconds, a big-endian
 * int64. A sender that was held up sends everything that was due meanwhile. Prints "{"sent": N}". */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

enum { ROOM = 65536, DIGITS = 19 };
#define SECOND_NS 1000000000LL

static void fail(const char *what)
{
    perror(what);
    exit(2);
}

static int64_t now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void stamp(char *datagram, int at, int milliseconds_at, int64_t due)
{
    char digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%019lld", (long long)due);
    memcpy(datagram + at, digits, DIGITS);
    if (milliseconds_at >= 0) {
        uint64_t swapped = __builtin_bswap64(due / 1000000);
        memcpy(datagram + milliseconds_at, &swapped, sizeof swapped);
    }
}

int main(int count, char **given)
{
    static char datagram[ROOM];
    if (count != 7) {
        fprintf(stderr, "usage: pace SOCKET TEMPLATE STAMP_AT TIMESTAMP_AT RATE COUNT\n");
        return 2;
    }
    FILE *file = fopen(given[2], "r");
    if (!file)
        fail(given[2]);
    size_t bytes = fread(datagram, 1, ROOM, file);
    int at = atoi(given[3]), milliseconds_at = atoi(given[4]);
    int64_t rate = atoll(given[5]), wanted = atoll(given[6]);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, given[1], sizeof address.sun_path - 1);
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (sender < 0 || connect(sender, (struct sockaddr *)&address, sizeof address))
        fail(given[1]);
    prctl(PR_SET_TIMERSLACK, 1L, 0, 0, 0);
    int64_t begun = now(CLOCK_MONOTONIC), wall = now(CLOCK_REALTIME) - begun;
    for (int64_t i = 0; i < wanted; i++) {
        int64_t due = begun + i * SECOND_NS / rate;
        struct timespec until = {due / SECOND_NS, due % SECOND_NS};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        stamp(datagram, at, milliseconds_at, wall + due);
        if (send(sender, datagram, bytes, 0) < 0)
            fail("send");
    }
    printf("{\"sent\": %lld}\n", (long long)wanted);
    return 0;
}
