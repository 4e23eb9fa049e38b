/* bruce.h: messages for the sockets of bruce, as bruce-wire(7) has them.
 *
 * One file, C99 or C++, without allocation, locks or globals:
 *
 *     char room[BRUCE_MAX_DATAGRAM];
 *     struct bruce_message one = {.topic = "orders", .value = bruce_text("hello"), .timestamp_ms = now_ms()};
 *     size_t size = bruce_encode(room, sizeof room, &one);
 *     if (size) send(fd, room, size, 0);
 *
 * and several messages in one datagram, which bruce takes or refuses as a whole:
 *
 *     struct bruce_batch batch;
 *     bruce_batch_begin(&batch, room, sizeof room);
 *     while (more() && bruce_batch_add(&batch, next())) continue;
 *     if (batch.count) send(fd, room, bruce_batch_end(&batch), 0);
 */
#ifndef BRUCE_H
#define BRUCE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    BRUCE_MAX_DATAGRAM = 65536, /* bytes; what is longer goes by stream */
    BRUCE_MAX_TOPIC = 32767,    /* bytes; Kafka takes 249 */
    BRUCE_MAX_HEADERS = 256,
    BRUCE_MAX_NAME = 255,       /* bytes of a header's name */
    BRUCE_MAX_BATCH = 256       /* messages */
};

enum bruce_by { BRUCE_ANY = 0, BRUCE_BY_PARTITION_KEY = 4, BRUCE_BY_PARTITION = 8 };

/* Bytes, or null where `at` is NULL. */
struct bruce_bytes {
    const void *at;
    int32_t size;
};

struct bruce_header {
    const char *name; /* UTF-8 */
    struct bruce_bytes value;
};

struct bruce_message {
    const char *topic;
    struct bruce_bytes key, value;
    int64_t timestamp_ms; /* since the epoch */
    enum bruce_by by;     /* what `number` is: nothing, a partition key, or the partition */
    int32_t number;
    const struct bruce_header *headers;
    size_t header_count;
};

struct bruce_batch {
    char *at;
    size_t room, size;
    int count; /* messages in it */
};

static inline struct bruce_bytes bruce_text(const char *text) {
    struct bruce_bytes bytes = {text, text ? (int32_t)strlen(text) : 0};
    return bytes;
}

static inline char *bruce_put(char *at, uint64_t number, int bytes) {
    for (int byte = 0; byte < bytes; byte++) at[byte] = (char)(number >> 8 * (bytes - 1 - byte));
    return at + bytes;
}

static inline char *bruce_put_bytes(char *at, struct bruce_bytes bytes) {
    at = bruce_put(at, (uint32_t)(bytes.at ? bytes.size : -1), 4);
    if (bytes.at && bytes.size) memcpy(at, bytes.at, (size_t)bytes.size);
    return at + (bytes.at ? bytes.size : 0);
}

/* Bytes that a message takes; 0: it is none, since a size or a name is not allowed. */
static inline size_t bruce_size(const struct bruce_message *message) {
    size_t topic = strlen(message->topic), size = 32 + topic;
    if (topic == 0 || topic > BRUCE_MAX_TOPIC || message->header_count > BRUCE_MAX_HEADERS) return 0;
    if (message->key.size < 0 || message->value.size < 0) return 0;
    size += (message->key.at ? (size_t)message->key.size : 0) + (message->value.at ? (size_t)message->value.size : 0);
    for (size_t i = 0; i < message->header_count; i++) {
        const struct bruce_header *header = &message->headers[i];
        size_t name = strlen(header->name);
        if (name > BRUCE_MAX_NAME || header->value.size < 0) return 0;
        size += 6 + name + (header->value.at ? (size_t)header->value.size : 0);
    }
    return size <= INT32_MAX ? size : 0;
}

/* Writes a message; the bytes that it takes, or 0 if there is no room, or it is none. */
static inline size_t bruce_encode(void *room, size_t bytes, const struct bruce_message *message) {
    size_t size = bruce_size(message), topic = strlen(message->topic);
    if (size == 0 || size > bytes) return 0;
    char *at = bruce_put((char *)room, size, 4);
    at = bruce_put(bruce_put(bruce_put(at, 258, 2), 0, 2), (uint64_t)message->by, 2);
    at = bruce_put(at, message->by == BRUCE_ANY ? 0 : (uint32_t)message->number, 4);
    at = bruce_put(at, topic, 2);
    memcpy(at, message->topic, topic);
    at = bruce_put(at + topic, (uint64_t)message->timestamp_ms, 8);
    at = bruce_put_bytes(bruce_put_bytes(at, message->key), message->value);
    for (size_t i = 0; i < message->header_count; i++) {
        size_t name = strlen(message->headers[i].name);
        at = bruce_put(at, name, 2);
        memcpy(at, message->headers[i].name, name);
        at = bruce_put_bytes(at + name, message->headers[i].value);
    }
    return size;
}

static inline void bruce_batch_begin(struct bruce_batch *batch, void *room, size_t bytes) {
    batch->at = (char *)room;
    batch->room = bytes;
    batch->size = 10;
    batch->count = 0;
}

/* Adds a message; 0 if it has no room beside the others, or is none: then the batch is as it was. */
static inline int bruce_batch_add(struct bruce_batch *batch, const struct bruce_message *message) {
    if (batch->count == BRUCE_MAX_BATCH || batch->room < batch->size) return 0;
    size_t size = bruce_encode(batch->at + batch->size, batch->room - batch->size, message);
    batch->size += size;
    batch->count += size != 0;
    return size != 0;
}

/* Writes the head of a batch of at least one message; the bytes that it takes. */
static inline size_t bruce_batch_end(struct bruce_batch *batch) {
    bruce_put(bruce_put(bruce_put(bruce_put(batch->at, batch->size, 4), 259, 2), 0, 2), 0, 2);
    return batch->size;
}

#endif
