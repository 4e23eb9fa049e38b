/* What librdkafka can do: COUNT messages with key, timestamp and header, idempotent, a report for each.
 *
 *     produce_librdkafka LIBRARY BOOTSTRAP TOPIC PARTITIONS COUNT VALUE_BYTES [PROPERTY=VALUE...]
 *
 * LIBRARY is opened by its path: the copy in the confluent_kafka wheel has no headers and no fixed name, so
 * what is needed of its interface is declared here. Messages go to the partitions in runs, as bruce sorts
 * them; reports are read from the event queue, and none is skipped. Prints one JSON line: the messages
 * reported, those with an error, seconds from the first tenth of the reports to the last, and CPU time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

enum { RKT = 2, PARTITION, VALUE, KEY, OPAQUE, MSGFLAGS, TIMESTAMP, HEADER, KINDS = 8 };
enum { COPY = 2, EVENT_DR = 1, PRODUCER = 0, QUEUE_FULL = -184, RUN = 1000, KEY_BYTES = 8 };

typedef struct {
    int kind;
    union {
        void *pointer;
        int32_t i32;
        int64_t i64;
        int flags;
        struct { const void *at; size_t bytes; } memory;
        struct { const char *name; const void *value; ssize_t bytes; } header;
        char room[64];
    } u;
} argument;

typedef struct { int error; void *topic; int32_t partition; } report;

#define FUNCTIONS(F) \
    F(void *, conf_new, (void)) \
    F(int, conf_set, (void *, const char *, const char *, char *, size_t)) \
    F(void, conf_set_events, (void *, int)) \
    F(void *, new, (int, void *, char *, size_t)) \
    F(void *, topic_new, (void *, const char *, void *)) \
    F(void *, queue_get_main, (void *)) \
    F(void *, queue_poll, (void *, int)) \
    F(const report *, event_message_next, (void *)) \
    F(void, event_destroy, (void *)) \
    F(void *, produceva, (void *, const argument *, size_t)) \
    F(int, error_code, (void *)) \
    F(void, error_destroy, (void *))
#define DECLARE(result, name, parameters) static result(*name) parameters;
FUNCTIONS(DECLARE)

static long reported, failed, wanted;
static double tenth_at;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(2);
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        fail(path, dlerror());
#define FIND(result, name, parameters) \
    if (!(name = (result(*) parameters)dlsym(library, "rd_kafka_" #name))) \
        fail(path, "has no rd_kafka_" #name);
    FUNCTIONS(FIND)
}

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

static void drain(void *queue, int wait_ms)
{
    void *event;
    while ((event = queue_poll(queue, wait_ms))) {
        const report *message;
        while ((message = event_message_next(event))) {
            failed += message->error != 0;
            if (++reported == wanted / 10)
                tenth_at = now();
        }
        event_destroy(event);
        wait_ms = 0;
    }
}

static void *connect_to(const char *bootstrap, int count, char **properties)
{
    char said[512];
    void *conf = conf_new();
    const char *fixed[][2] = {{"bootstrap.servers", bootstrap}, {"acks", "all"}, {"enable.idempotence", "true"},
        {"linger.ms", "20"}, {"message.timeout.ms", "0"}, {"queue.buffering.max.messages", "500000"},
        {"queue.buffering.max.kbytes", "1000000"}, {"log_level", "3"}};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (conf_set(conf, fixed[i][0], fixed[i][1], said, sizeof said))
            fail(fixed[i][0], said);
    for (int i = 0; i < count; i++) {
        char *equals = strchr(properties[i], '=');
        if (!equals)
            fail(properties[i], "is not PROPERTY=VALUE");
        *equals = 0;
        if (conf_set(conf, properties[i], equals + 1, said, sizeof said))
            fail(properties[i], said);
    }
    conf_set_events(conf, EVENT_DR);
    void *producer = new(PRODUCER, conf, said, sizeof said);
    if (!producer)
        fail("rd_kafka_new", said);
    return producer;
}

static void produce(void *producer, void *queue, const argument *arguments)
{
    for (;;) {
        void *error = produceva(producer, arguments, KINDS);
        if (!error)
            return;
        int code = error_code(error);
        error_destroy(error);
        if (code != QUEUE_FULL)
            fail("rd_kafka_produceva", "refused a message");
        drain(queue, 5);
    }
}

int main(int count, char **given)
{
    if (count < 7)
        fail("usage", "produce_librdkafka LIBRARY BOOTSTRAP TOPIC PARTITIONS COUNT VALUE_BYTES [NAME=VALUE...]");
    load(given[1]);
    void *producer = connect_to(given[2], count - 7, given + 7), *queue = queue_get_main(producer);
    void *topic = topic_new(producer, given[3], NULL);
    int partitions = atoi(given[4]);
    wanted = atol(given[5]);
    size_t bytes = atol(given[6]);
    char *value = malloc(bytes), key[KEY_BYTES], identity[24] = {0};
    memset(value, 'v', bytes);
    argument arguments[KINDS] = {{.kind = RKT}, {.kind = PARTITION}, {.kind = VALUE}, {.kind = KEY},
        {.kind = OPAQUE}, {.kind = MSGFLAGS}, {.kind = TIMESTAMP}, {.kind = HEADER}};
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
        produce(producer, queue, arguments);
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
