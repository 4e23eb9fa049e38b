/* The most that the kernel allows: a loop on recvmmsg that throws its input away.
 *
 *     discard_recvmmsg SOCKET COUNT
 *
 * The same calls as bruce's intake: SO_PASSCRED, 512 slots of 2 KiB, a control buffer of 32 bytes each.
 * Prints "ready", and after COUNT datagrams one JSON line: how many, and its CPU time. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SLOTS = 512, SLOT_BYTES = 2048, CONTROL_BYTES = 32 };

static struct mmsghdr headers[SLOTS];
static struct iovec vectors[SLOTS];
static char slots[SLOTS][SLOT_BYTES];
static char controls[SLOTS][CONTROL_BYTES];

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0), on = 1;
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    unlink(path);
    if (receiver < 0 || setsockopt(receiver, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) ||
        bind(receiver, (struct sockaddr *)&address, sizeof address) || chmod(path, 0666)) {
        perror(path);
        exit(2);
    }
    return receiver;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

int main(int count, char **arguments)
{
    if (count != 3) {
        fprintf(stderr, "usage: discard_recvmmsg SOCKET COUNT\n");
        return 2;
    }
    long wanted = atol(arguments[2]), received = 0;
    int receiver = listen_at(arguments[1]);
    for (int i = 0; i < SLOTS; i++) {
        vectors[i] = (struct iovec){slots[i], SLOT_BYTES};
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
        headers[i].msg_hdr.msg_control = controls[i];
    }
    printf("ready\n");
    fflush(stdout);
    int used = SLOTS;
    while (received < wanted) {
        for (int i = 0; i < used; i++) {
            headers[i].msg_hdr.msg_controllen = CONTROL_BYTES;
            headers[i].msg_hdr.msg_flags = 0;
        }
        used = recvmmsg(receiver, headers, SLOTS, MSG_WAITFORONE, NULL);
        if (used < 0) {
            perror("recvmmsg");
            return 2;
        }
        received += used;
    }
    printf("{\"received\": %ld, \"cpu_seconds\": %.6f}\n", received, cpu_seconds());
    return 0;
}
