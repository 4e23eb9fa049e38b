/* The floor of a daemon that forwards: recvmmsg and produceva, and nothing on disk.
 *
 *     forward_librdkafka LIBRARY BOOTSTRAP TOPIC SOCKET [PROPERTY=VALUE...]
 *
 * Each datagram is the value of a message, to a partition that librdkafka chooses, with librdkafka's own linger
 * (5 ms). Reports are read when the next datagrams come. Prints "ready", and ends by a signal. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "librdkafka.h"

enum { SLOTS = 512, SLOT_BYTES = 2048, KINDS = 3 };

static struct mmsghdr headers[SLOTS];
static struct iovec vectors[SLOTS];
static char slots[SLOTS][SLOT_BYTES];

static void on_report(void)
{
    if (failed)
        fail("delivery", "a message failed");
}

int main(int count, char **given)
{
    if (count < 5)
        fail("usage", "forward_librdkafka LIBRARY BOOTSTRAP TOPIC SOCKET [PROPERTY=VALUE...]");
    load(given[1]);
    void *conf = configure(given[2]);
    for (int i = 5; i < count; i++)
        set_given(conf, given[i]);
    void *producer = start(conf), *queue = queue_get_main(producer);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, given[4], sizeof address.sun_path - 1);
    unlink(given[4]);
    int receiver = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (receiver < 0 || bind(receiver, (struct sockaddr *)&address, sizeof address))
        fail(given[4], "cannot be bound");
    for (int i = 0; i < SLOTS; i++) {
        vectors[i] = (struct iovec){slots[i], SLOT_BYTES};
        headers[i].msg_hdr.msg_iov = &vectors[i];
        headers[i].msg_hdr.msg_iovlen = 1;
    }
    argument arguments[KINDS] = {{.kind = RKT}, {.kind = VALUE}, {.kind = MSGFLAGS}};
    arguments[0].u.pointer = topic_new(producer, given[3], NULL);
    arguments[2].u.flags = COPY;
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        int used = recvmmsg(receiver, headers, SLOTS, MSG_WAITFORONE, NULL);
        if (used < 0)
            fail("recvmmsg", "failed");
        for (int i = 0; i < used; i++) {
            arguments[1].u.memory.at = slots[i];
            arguments[1].u.memory.bytes = headers[i].msg_len;
            produce(producer, queue, arguments, KINDS);
        }
        drain(queue, 0);
    }
}
