/* A client in C: messages of 120 bytes by install/include/bruce.h.
 *
 *     send_messages SOCKET COUNT BATCH
 *
 * BATCH is the most messages of a datagram; with 1 there are no batches. Prints one JSON line: the seconds that
 * it took. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../../install/include/bruce.h"

static char room[BRUCE_MAX_DATAGRAM], value[120];

static int64_t now_ns(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * INT64_C(1000000000) + time.tv_nsec;
}

static void send_all(int sender, size_t size)
{
    if (send(sender, room, size, 0) != (ssize_t)size) {
        perror("send");
        exit(1);
    }
}

int main(int count, char **arguments)
{
    if (count != 4) {
        fprintf(stderr, "usage: send_messages SOCKET COUNT BATCH\n");
        return 2;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    strncpy(address.sun_path, arguments[1], sizeof address.sun_path - 1);
    if (sender < 0 || connect(sender, (struct sockaddr *)&address, sizeof address)) {
        perror(arguments[1]);
        return 1;
    }
    long wanted = atol(arguments[2]), most = atol(arguments[3]);
    struct bruce_batch batch;
    bruce_batch_begin(&batch, room, sizeof room);
    int64_t begun = now_ns(CLOCK_MONOTONIC);
    for (long sent = 0; sent < wanted; sent++) {
        struct bruce_message one = {.topic = "load", .value = {value, sizeof value}};
        one.timestamp_ms = now_ns(CLOCK_REALTIME) / 1000000;
        if (most == 1) {
            send_all(sender, bruce_encode(room, sizeof room, &one));
            continue;
        }
        if (batch.count < most && bruce_batch_add(&batch, &one)) continue;
        send_all(sender, bruce_batch_end(&batch));
        bruce_batch_begin(&batch, room, sizeof room);
        bruce_batch_add(&batch, &one);
    }
    if (batch.count) send_all(sender, bruce_batch_end(&batch));
    printf("{\"seconds\": %f}\n", (now_ns(CLOCK_MONOTONIC) - begun) / 1e9);
    return 0;
}
