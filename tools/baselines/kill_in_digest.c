/* A process dies by SIGKILL between a frame's head and its digest, whenever somebody outside wants that.
 *
 *     KILL_IN_DIGEST_FILE=/path/of/16/bytes LD_PRELOAD=kill_in_digest.so PROGRAM
 *
 * The file holds two int64: how often this shall still happen, and how often it has happened. Compiled loops
 * call XXH3 by the address that dlsym gives, so that is where this comes in. A frame is being finished when
 * the word before the bytes to be digested, where the digest will be stored last, is zero.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEAD_BYTES = 64 };

static int64_t *words;
static uint64_t (*digest)(const void *, size_t, uint64_t);

__attribute__((constructor)) static void map_file(void)
{
    const char *path = getenv("KILL_IN_DIGEST_FILE");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED)
        words = at;
    if (fd >= 0)
        close(fd);
}

static int is_being_finished(const unsigned char *at, size_t length)
{
    uint64_t before;
    uint16_t head_bytes;
    if (length < HEAD_BYTES - 8)
        return 0;
    memcpy(&head_bytes, at + 4, 2);
    if (head_bytes != HEAD_BYTES)
        return 0;
    memcpy(&before, at - 8, 8);
    return before == 0;
}

static uint64_t guarded(const void *at, size_t length, uint64_t seed)
{
    if (words && __atomic_load_n(&words[0], __ATOMIC_ACQUIRE) > 0 && is_being_finished(at, length)) {
        if (__atomic_fetch_sub(&words[0], 1, __ATOMIC_ACQ_REL) > 0) {
            __atomic_fetch_add(&words[1], 1, __ATOMIC_ACQ_REL);
            kill(getpid(), SIGKILL);
        }
    }
    return digest(at, length, seed);
}

void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    static const char *const versions[] = { "GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5" };
    for (size_t i = 0; !real && i < sizeof versions / sizeof *versions; i++)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    void *found = real ? real(handle, name) : NULL;
    if (found && strcmp(name, "XXH3_64bits_withSeed") == 0) {
        digest = (uint64_t (*)(const void *, size_t, uint64_t))found;
        return (void *)guarded;
    }
    return found;
}
