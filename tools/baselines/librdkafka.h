/* The part of librdkafka's interface that the programs here need. They open it by its path: the copy in the
 * confluent_kafka wheel has no headers and no fixed name. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

enum { RKT = 2, PARTITION, VALUE, KEY, OPAQUE, MSGFLAGS, TIMESTAMP, HEADER };
enum { COPY = 2, EVENT_DR = 1, PRODUCER = 0, QUEUE_FULL = -184, ANY_PARTITION = -1 };

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

static long reported, failed;

/* Each program has its own: called after a report is counted. */
static void on_report(void);

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

static void set(void *conf, const char *name, const char *value)
{
    char said[512];
    if (conf_set(conf, name, value, said, sizeof said))
        fail(name, said);
}

static void set_given(void *conf, char *property)
{
    char *equals = strchr(property, '=');
    if (!equals)
        fail(property, "is not PROPERTY=VALUE");
    *equals = 0;
    set(conf, property, equals + 1);
}

/* Of an idempotent producer with acks=all that never gives a message up. */
static void *configure(const char *bootstrap)
{
    void *conf = conf_new();
    set(conf, "bootstrap.servers", bootstrap);
    set(conf, "acks", "all");
    set(conf, "enable.idempotence", "true");
    set(conf, "message.timeout.ms", "0");
    set(conf, "log_level", "3");
    return conf;
}

/* Reports come as events. */
static void *start(void *conf)
{
    char said[512];
    conf_set_events(conf, EVENT_DR);
    void *producer = new(PRODUCER, conf, said, sizeof said);
    if (!producer)
        fail("rd_kafka_new", said);
    return producer;
}

static void drain(void *queue, int wait_ms)
{
    void *event;
    while ((event = queue_poll(queue, wait_ms))) {
        const report *message;
        while ((message = event_message_next(event))) {
            failed += message->error != 0;
            reported++;
            on_report();
        }
        event_destroy(event);
        wait_ms = 0;
    }
}

static void produce(void *producer, void *queue, const argument *arguments, size_t kinds)
{
    for (;;) {
        void *error = produceva(producer, arguments, kinds);
        if (!error)
            return;
        int code = error_code(error);
        error_destroy(error);
        if (code != QUEUE_FULL)
            fail("rd_kafka_produceva", "refused a message");
        drain(queue, 5);
    }
}
