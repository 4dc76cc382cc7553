/* What lies outside the library: the simulator that knows the disks' files, and one host's memory and rate,
 * which all processes on this folder share. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "standin.h"

enum { ANSWER_BYTES_MAX = 16 << 20, SLOTS = 512 };

/* GET of a path of the simulator's control API; the body, or NULL. */
static char *control_get(const char *path) {
    char host[256] = "", port[16] = "";
    if (sscanf(config.control, "http://%255[^:]:%15[0-9]", host, port) != 2) return NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    if (getaddrinfo(host, port, &hints, &found) != 0) return NULL;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int connected = fd < 0 ? -1 : connect(fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    char *answer = connected < 0 ? NULL : malloc(ANSWER_BYTES_MAX);
    size_t length = 0;
    if (answer) {
        /* HTTP/1.0, so that the body comes in one piece and ends with the connection. */
        dprintf(fd, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", path, host);
        for (ssize_t got; length < ANSWER_BYTES_MAX - 1; length += got)
            if ((got = read(fd, answer + length, ANSWER_BYTES_MAX - 1 - length)) <= 0) break;
        answer[length] = 0;
        char *body = strstr(answer, "\r\n\r\n");
        if (!body || !strstr(answer, " 200 ")) {
            free(answer);
            answer = NULL;
        } else
            memmove(answer, body + 4, strlen(body + 4) + 1);
    }
    if (fd >= 0) close(fd);
    return answer;
}

bool session_is_alive(const char *cookie) {
    char path[TEXT_MAX];
    if (cookie[strspn(cookie, "0123456789abcdefABCDEF-")] != 0) return false;
    snprintf(path, sizeof path, "/sessions/%s", cookie);
    char *answer = control_get(path);
    free(answer);
    return answer != NULL;
}

/* The file that holds a disk's bytes: as the snapshot froze it, or the live one without a snapshot. The
 * simulator's answer has always the same order of keys, so looking for texts is enough. */
VixError find_file(const char *vm, const char *snapshot, const char *disk, char *path) {
    char text[2 * TEXT_MAX];
    char *answer = control_get("/disks");
    if (!answer) {
        warn("the simulator's control API at '%s' does not answer", config.control);
        return VIX_E_SERVER_NOT_FOUND;
    }
    snprintf(text, sizeof text, "\"moid\":\"%s\"", vm);
    char *from = strstr(answer, text);
    char *end = from ? strstr(from + 1, "\"moid\":") : NULL;
    if (end) *end = 0;
    if (snapshot)
        snprintf(text, sizeof text, "\"%s\":{\"name\":\"%s\",\"path\":\"", snapshot, disk);
    else
        snprintf(text, sizeof text, "\"name\":\"%s\",\"live\":\"", disk);
    char *found = from ? strstr(from, text) : NULL;
    if (found) {
        found += strlen(text);
        snprintf(path, TEXT_MAX, "%.*s", (int)strcspn(found, "\""), found);
    }
    free(answer);
    return found ? VIX_OK : VIX_E_FILE_NOT_FOUND;
}

struct shared {
    _Atomic uint64_t host_next;
    struct { int pid; uint64_t bytes; } open[SLOTS];
};

static int shared_fd = -1;

static struct shared *shared(void) {
    static struct shared *map;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!map) {
        char path[2 * TEXT_MAX];
        snprintf(path, sizeof path, "%s/state-%s", config.folder, config.host);
        shared_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (shared_fd < 0 || ftruncate(shared_fd, sizeof *map) < 0) abort();
        map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
        if (map == MAP_FAILED) abort();
    }
    pthread_mutex_unlock(&lock);
    return map;
}

/* Memory of killed processes is given back when the next disk is opened, as a host does when a connection dies. */
VixError nfc_take(uint64_t bytes, int *slot) {
    struct shared *state = shared();
    uint64_t used = 0, disks = 0;
    VixError result = VIX_OK;
    flock(shared_fd, LOCK_EX);
    *slot = -1;
    for (int i = 0; i < SLOTS; i++) {
        int pid = state->open[i].pid;
        if (pid && kill(pid, 0) < 0 && errno == ESRCH) pid = state->open[i].pid = 0;
        if (pid) {
            used += state->open[i].bytes;
            disks++;
        } else if (*slot < 0)
            *slot = i;
    }
    if (*slot < 0 || (config.sessions_max && disks >= config.sessions_max))
        result = VIX_E_TOO_MANY_SESSIONS;
    else if (config.nfc_bytes_max && used + bytes > config.nfc_bytes_max)
        result = VIX_E_OUT_OF_MEMORY;
    if (result == VIX_OK) {
        state->open[*slot].pid = getpid();
        state->open[*slot].bytes = bytes;
        call_log("nfc host=%s bytes=%llu used=%llu disks=%llu", config.host, (unsigned long long)bytes,
                 (unsigned long long)(used + bytes), (unsigned long long)(disks + 1));
    } else
        *slot = -1;
    flock(shared_fd, LOCK_UN);
    return result;
}

void nfc_give(int slot) {
    if (slot < 0) return;
    struct shared *state = shared();
    flock(shared_fd, LOCK_EX);
    state->open[slot].pid = 0;
    flock(shared_fd, LOCK_UN);
}

uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

void sleep_until(uint64_t ns) {
    struct timespec time = {ns / 1000000000ull, ns % 1000000000ull};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) == EINTR) {}
}

/* Takes the next piece of a line that carries one piece after the other, and tells when it is through. */
static uint64_t line_take(_Atomic uint64_t *next, uint64_t bytes, uint64_t bytes_per_s) {
    if (!bytes_per_s) return 0;
    uint64_t takes = bytes * 1000000000ull / bytes_per_s, now = now_ns();
    uint64_t free_at = atomic_load(next), from;
    do from = free_at > now ? free_at : now;
    while (!atomic_compare_exchange_weak(next, &free_at, from + takes));
    return from + takes;
}

uint64_t rate_take(uint64_t *connection_next, uint64_t bytes) {
    uint64_t one = line_take((_Atomic uint64_t *)connection_next, bytes, config.connection_bytes_per_s);
    uint64_t all = config.host_bytes_per_s ? line_take(&shared()->host_next, bytes, config.host_bytes_per_s) : 0;
    return one > all ? one : all;
}
