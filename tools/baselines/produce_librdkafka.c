/* The most that librdkafka can do: COUNT messages with key, timestamp and header, idempotent, a report for each.
 *
 *     produce_librdkafka LIBRARY BOOTSTRAP TOPIC PARTITIONS COUNT VALUE_BYTES HEADERS [PROPERTY=VALUE...]
 *
 * HEADERS: none, 1 or 2 of tools/payload.py's headers, behind the one that bruce has.
 * Messages go to the partitions in runs, as bruce sorts them; reports are read from the event queue, and none
 * is skipped. Prints one JSON line: the messages reported, those with an error, seconds from the first tenth of
 * the reports to the last, and CPU time. */
#define _GNU_SOURCE
#include <sys/resource.h>
#include <time.h>

#include "librdkafka.h"

enum { KINDS = 8, MOST_HEADERS = 2, RUN = 1000, KEY_BYTES = 8 };

static long wanted;
static double tenth_at;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void on_report(void)
{
    if (reported == wanted / 10)
        tenth_at = now();
}

int main(int count, char **given)
{
    if (count < 8)
        fail("usage",
            "produce_librdkafka LIBRARY BOOTSTRAP TOPIC PARTITIONS COUNT VALUE_BYTES HEADERS [NAME=VALUE...]");
    load(given[1]);
    void *conf = configure(given[2]);
    set(conf, "linger.ms", "20");
    set(conf, "queue.buffering.max.messages", "500000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    for (int i = 8; i < count; i++)
        set_given(conf, given[i]);
    void *producer = start(conf), *queue = queue_get_main(producer);
    void *topic = topic_new(producer, given[3], NULL);
    int partitions = atoi(given[4]);
    wanted = atol(given[5]);
    size_t bytes = atol(given[6]);
    int headers = atoi(given[7]);
    if (headers < 0 || headers > MOST_HEADERS)
        fail(given[7], "is not a number of headers from 0 to 2");
    char *value = malloc(bytes), trace[55], key[KEY_BYTES], identity[24] = {0};
    memset(value, 'v', bytes);
    memset(trace, 't', sizeof trace);
    argument arguments[KINDS + MOST_HEADERS] = {{.kind = RKT}, {.kind = PARTITION}, {.kind = VALUE}, {.kind = KEY},
        {.kind = OPAQUE}, {.kind = MSGFLAGS}, {.kind = TIMESTAMP}, {.kind = HEADER},
        {.kind = HEADER, .u.header = {"traceparent", trace, sizeof trace}},
        {.kind = HEADER, .u.header = {"content-type", "text/plain", 10}}};
    arguments[0].u.pointer = topic;
    arguments[2].u.memory.at = value;
    arguments[2].u.memory.bytes = bytes;
    arguments[3].u.memory.at = key;
    arguments[3].u.memory.bytes = KEY_BYTES;
    arguments[5].u.flags = COPY;
    arguments[7].u.header.name = "bruce-id";
    arguments[7].u.header.value = identity;
    arguments[7].u.header.bytes = sizeof identity;
    double begun = now();
    for (int64_t i = 0; i < wanted; i++) {
        memcpy(key, &i, KEY_BYTES);
        memcpy(identity + 16, &i, 8);
        arguments[1].u.i32 = i / RUN % partitions;
        arguments[4].u.pointer = (void *)(intptr_t)i;
        arguments[6].u.i64 = 1700000000000 + i;
        produce(producer, queue, arguments, KINDS + headers);
        if (i % 1024 == 0)
            drain(queue, 0);
    }
    while (reported < wanted) {
        drain(queue, 100);
        if (now() - begun > 600)
            fail("reports", "did not come within 600 s");
    }
    printf("{\"reported\": %ld, \"failed\": %ld, \"seconds\": %.6f, \"cpu_seconds\": %.6f}\n", reported, failed,
        now() - tenth_at, cpu_seconds());
    return 0;
}
