/* A disk that is read by NFC. A thread of its own has the connection: it sends what callers ask for, and puts what
 * comes right where they want it.
 *
 * Each read of a caller is one request, whatever its length, as VMware's library is known to send up to 32 MiB in
 * one; the host cuts the answer into pieces of a buffer. As many requests are under way as the session has buffers. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "frames.h"

enum { FLAG_ZLIB = 16, FLAG_FASTLZ = 32, FLAG_SKIPZ = 64 };
enum { FRAME_MAX = HEAD_BYTES + ALLOCATED_BYTES, CHUNKS_MAX = 512 << 10 };

struct ask {
    struct ask *next;
    uint32_t op, chunks; /* of a question for allocated blocks, else 0 */
    uint64_t offset, length, left, chunk_bytes;
    unsigned char *to;
    DoneFn *done;
    void *data;
};

enum expect { EXPECT_HEAD, EXPECT_PAYLOAD, EXPECT_DATA, EXPECT_PACKED, EXPECT_BITS, EXPECT_ERROR, EXPECT_GHOST };

struct nfc {
    struct line line;
    struct opened opened;
    uint32_t codec;
    int wake;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct ask *first, **last; /* to be sent */
    uint64_t waiting;          /* asked for and not ended */
    VixError broken;
    bool ending;
    _Atomic bool sleeps, has_new;

    /* Of the thread. */
    struct ask *flying[BUFFERS_MAX];
    uint32_t in_flight;
    unsigned char out[BUFFERS_MAX * FRAME_MAX];
    size_t out_length, out_sent;
    enum expect expect;
    unsigned char head[HEAD_BYTES], payload[PAYLOAD_MAX];
    unsigned char *packed;
    unsigned char *into; /* what is received now */
    size_t room;
    struct ask *of;      /* whose it is */
    unsigned char *plain;
    uint32_t plain_bytes, packed_bytes;
    char text[TEXT_MAX]; /* of an error */
    uint32_t ghost;      /* a question that failed, whose ordinary reply may still come */
    bool has_ghost;
};

uint64_t nfc_bytes(const struct nfc *nfc) { return nfc->opened.bytes / SECTOR_BYTES * SECTOR_BYTES; }

static void expect(struct nfc *nfc, enum expect what, void *into, size_t room) {
    nfc->expect = what;
    nfc->into = into;
    nfc->room = room;
}

static void ended(struct nfc *nfc, struct ask *ask, VixError result) {
    ask->done(ask->data, result);
    free(ask);
    pthread_mutex_lock(&nfc->lock);
    nfc->waiting--;
    pthread_cond_broadcast(&nfc->changed);
    pthread_mutex_unlock(&nfc->lock);
}

/* All that is asked for fails, now and from now on. */
static void fail(struct nfc *nfc, VixError why) {
    pthread_mutex_lock(&nfc->lock);
    struct ask *unsent = nfc->first;
    nfc->first = NULL;
    nfc->last = &nfc->first;
    nfc->broken = why;
    pthread_mutex_unlock(&nfc->lock);
    while (nfc->in_flight > 0) ended(nfc, nfc->flying[--nfc->in_flight], why);
    while (unsent) {
        struct ask *next = unsent->next;
        ended(nfc, unsent, why);
        unsent = next;
    }
}

static void write_frame(struct nfc *nfc, struct ask *ask) {
    unsigned char *frame = nfc->out + nfc->out_length, *payload = frame + HEAD_BYTES;
    uint32_t length = ask->chunks ? ALLOCATED_BYTES : IO_BYTES;
    ask->op = nfc->opened.next_op++;
    memset(payload, 0, length);
    put_head(frame, ask->chunks ? KIND_ALLOCATED : KIND_IO, length, ask->op);
    put64(payload, nfc->opened.handle);
    if (ask->chunks) {
        put64(payload + 16, ask->chunk_bytes);
        put64(payload + 24, ask->offset);
        put64(payload + 32, ask->chunks);
    } else {
        put32(payload + 8, 1);
        put32(payload + 12, nfc->codec);
        put64(payload + 16, ask->offset);
        put32(payload + 24, ask->length);
        put32(payload + 32, ask->length);
        put32(payload + 36, ask->length);
    }
    nfc->out_length += HEAD_BYTES + length;
}

/* Takes what callers ask for, while there are buffers for it, and sends. */
static bool send_some(struct nfc *nfc) {
    if (nfc->out_sent == nfc->out_length) {
        nfc->out_sent = nfc->out_length = 0;
        if (nfc->in_flight < config.buffer_count && atomic_load(&nfc->has_new)) {
            pthread_mutex_lock(&nfc->lock);
            while (nfc->first && nfc->in_flight < config.buffer_count) {
                struct ask *ask = nfc->first;
                nfc->first = ask->next;
                if (!nfc->first) nfc->last = &nfc->first;
                nfc->flying[nfc->in_flight++] = ask;
                write_frame(nfc, ask);
            }
            atomic_store(&nfc->has_new, nfc->first != NULL);
            pthread_mutex_unlock(&nfc->lock);
        }
    }
    if (nfc->out_sent == nfc->out_length) return true;
    ssize_t sent = line_send(&nfc->line, nfc->out + nfc->out_sent, nfc->out_length - nfc->out_sent);
    if (sent > 0) nfc->out_sent += sent;
    return sent != LINE_ENDED;
}

static struct ask *find(struct nfc *nfc, uint32_t op) {
    for (uint32_t i = 0; i < nfc->in_flight; i++)
        if (nfc->flying[i]->op == op) return nfc->flying[i];
    return NULL;
}

static void complete(struct nfc *nfc, struct ask *ask, VixError result) {
    uint32_t at = 0;
    while (nfc->flying[at] != ask) at++;
    nfc->flying[at] = nfc->flying[--nfc->in_flight];
    ended(nfc, ask, result);
}

static void part_came(struct nfc *nfc) {
    nfc->of->left -= nfc->plain_bytes;
    if (nfc->of->left == 0) complete(nfc, nfc->of, VIX_OK);
    expect(nfc, EXPECT_HEAD, nfc->head, sizeof nfc->head);
}

static VixError on_head(struct nfc *nfc) {
    uint32_t kind = get32(nfc->head + 4), length = get32(nfc->head + 8);
    nfc->of = find(nfc, get32(nfc->head + 12));
    if (nfc->has_ghost && nfc->ghost == get32(nfc->head + 12) && kind == KIND_ALLOCATED && length == ALLOCATED_BYTES) {
        nfc->has_ghost = false;
        expect(nfc, EXPECT_GHOST, nfc->payload, length);
        return VIX_OK;
    }
    bool is_due = nfc->of && ((kind == KIND_ERROR && length == ERROR_BYTES) ||
                              (kind == KIND_IO && length == IO_BYTES && !nfc->of->chunks) ||
                              (kind == KIND_ALLOCATED && length == ALLOCATED_BYTES && nfc->of->chunks));
    if (get32(nfc->head) != MAGIC || !is_due) return VIX_E_FILE_ACCESS_ERROR;
    expect(nfc, EXPECT_PAYLOAD, nfc->payload, length);
    return VIX_OK;
}

/* A piece of a read's answer. What it says is held against what was asked. */
static VixError on_piece(struct nfc *nfc) {
    const unsigned char *p = nfc->payload;
    uint32_t codec = get32(p + 12), at = get32(p + 28), plain = get32(p + 32), extra = get32(p + 36);
    struct ask *ask = nfc->of;
    if (get64(p) != 0) return nfc_error(get64(p), "read");
    if (get64(p + 16) != ask->offset || get32(p + 24) != ask->length || plain == 0 || at > ask->length ||
        plain > ask->length - at || plain > ask->left || extra > config.buffer_bytes ||
        (codec != CODEC_NONE && codec != nfc->codec) || (codec == CODEC_NONE && extra != plain) || extra == 0)
        return VIX_E_FILE_ACCESS_ERROR;
    nfc->plain = ask->to + at;
    nfc->plain_bytes = plain;
    nfc->packed_bytes = extra;
    if (codec == CODEC_NONE)
        expect(nfc, EXPECT_DATA, nfc->plain, plain);
    else
        expect(nfc, EXPECT_PACKED, nfc->packed, extra);
    return VIX_OK;
}

static VixError on_bits(struct nfc *nfc) {
    if (get64(nfc->payload + 32) != nfc->of->chunks) return VIX_E_FILE_ACCESS_ERROR;
    expect(nfc, EXPECT_BITS, nfc->of->to, (nfc->of->chunks + 31) / 32 * 4);
    return VIX_OK;
}

/* After an error of a read nothing of the connection can be trusted. A question just fails, and hosts may send the
 * ordinary reply all the same, of zeros. */
static VixError on_error_text(struct nfc *nfc) {
    VixError error = nfc_error(get64(nfc->payload), nfc->text);
    if (!nfc->of->chunks) return error;
    nfc->has_ghost = true;
    nfc->ghost = nfc->of->op;
    complete(nfc, nfc->of, error);
    expect(nfc, EXPECT_HEAD, nfc->head, sizeof nfc->head);
    return VIX_OK;
}

static VixError on_error(struct nfc *nfc) {
    uint32_t length = get32(nfc->payload + 12);
    if (length >= sizeof nfc->text) return nfc_error(get64(nfc->payload), "a text that is too long");
    nfc->text[length] = 0;
    if (length == 0) return on_error_text(nfc);
    expect(nfc, EXPECT_ERROR, nfc->text, length);
    return VIX_OK;
}

static VixError unpack(struct nfc *nfc) {
    if (skipz_unpack(nfc->packed, nfc->packed_bytes, nfc->plain, nfc->plain_bytes)) return VIX_OK;
    /* What does not shrink may come as it is, under its codec all the same. */
    if (nfc->packed_bytes != nfc->plain_bytes) return VIX_E_FILE_ACCESS_ERROR;
    memcpy(nfc->plain, nfc->packed, nfc->plain_bytes);
    return VIX_OK;
}

/* All of what was expected has come. */
static VixError came(struct nfc *nfc) {
    VixError error = VIX_OK;
    switch (nfc->expect) {
    case EXPECT_HEAD: return on_head(nfc);
    case EXPECT_PAYLOAD:
        switch (get32(nfc->head + 4)) {
        case KIND_ERROR: return on_error(nfc);
        case KIND_IO: return on_piece(nfc);
        default: return on_bits(nfc);
        }
    case EXPECT_PACKED: error = unpack(nfc); /* fall through */
    case EXPECT_DATA:
        if (error == VIX_OK) part_came(nfc);
        return error;
    case EXPECT_ERROR: return on_error_text(nfc);
    case EXPECT_GHOST:
        expect(nfc, EXPECT_HEAD, nfc->head, sizeof nfc->head);
        return get64(nfc->payload + 32) == 0 ? VIX_OK : VIX_E_FILE_ACCESS_ERROR;
    default:
        complete(nfc, nfc->of, VIX_OK);
        expect(nfc, EXPECT_HEAD, nfc->head, sizeof nfc->head);
        return VIX_OK;
    }
}

/* Waits for the host or for a caller. */
static void sleep_for_news(struct nfc *nfc) {
    uint64_t unused;
    struct pollfd fds[] = {{.fd = nfc->line.fd, .events = POLLIN}, {.fd = nfc->wake, .events = POLLIN}};
    if (nfc->out_sent < nfc->out_length) fds[0].events |= POLLOUT;
    /* New requests for which there is no buffer wake nobody. */
    bool has_room = nfc->in_flight < config.buffer_count;
    atomic_store(&nfc->sleeps, has_room);
    if (!has_room || !atomic_load(&nfc->has_new)) poll(fds, 2, -1);
    atomic_store(&nfc->sleeps, false);
    if (fds[1].revents && read(nfc->wake, &unused, sizeof unused) < 0 && errno != EAGAIN) abort();
}

static bool is_over(struct nfc *nfc) {
    pthread_mutex_lock(&nfc->lock);
    bool over = nfc->ending && nfc->waiting == 0;
    pthread_mutex_unlock(&nfc->lock);
    return over;
}

static void *serve(void *arg) {
    struct nfc *nfc = arg;
    expect(nfc, EXPECT_HEAD, nfc->head, sizeof nfc->head);
    for (;;) {
        if (!send_some(nfc)) break;
        ssize_t got = line_receive(&nfc->line, nfc->into, nfc->room);
        if (got == LINE_ENDED) break;
        if (got == LINE_AGAIN) {
            if (is_over(nfc)) return NULL;
            sleep_for_news(nfc);
            continue;
        }
        nfc->into += got;
        nfc->room -= got;
        VixError error = nfc->room == 0 ? came(nfc) : VIX_OK;
        if (error == VIX_OK) continue;
        fail(nfc, error);
        return NULL;
    }
    warn("[NFC ERROR] the connection to the host broke");
    fail(nfc, VIX_E_FILE_ACCESS_ERROR);
    return NULL;
}

VixError nfc_open(struct api *api, const char *vm, const char *path, uint32_t flags, bool encrypted, struct nfc **out) {
    struct ticket ticket = {0};
    if (flags & (FLAG_ZLIB | FLAG_FASTLZ)) {
        warn("VixDiskLib: the stand-in knows no compression by NFC but SkipZ");
        return VIX_E_NOT_SUPPORTED;
    }
    struct nfc *nfc = calloc(1, sizeof *nfc);
    if (!nfc || !(nfc->packed = malloc(config.buffer_bytes))) abort();
    nfc->codec = flags & FLAG_SKIPZ ? CODEC_SKIPZ : CODEC_NONE;
    VixError error = api_ticket(api, vm, &ticket);
    if (error == VIX_OK) error = handshake(&nfc->line, &ticket, path, encrypted, &nfc->opened);
    if (error != VIX_OK) {
        free(nfc->packed);
        free(nfc);
        return error;
    }
    line_set_waiting(&nfc->line, false);
    pthread_mutex_init(&nfc->lock, NULL);
    pthread_cond_init(&nfc->changed, NULL);
    nfc->last = &nfc->first;
    nfc->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (nfc->wake < 0 || pthread_create(&nfc->thread, NULL, serve, nfc) != 0) abort();
    *out = nfc;
    return VIX_OK;
}

static void wake(struct nfc *nfc) {
    const uint64_t one = 1;
    if (atomic_load(&nfc->sleeps) && write(nfc->wake, &one, sizeof one) < 0 && errno != EAGAIN) abort();
}

static void add(struct nfc *nfc, struct ask *ask) {
    pthread_mutex_lock(&nfc->lock);
    VixError broken = nfc->broken;
    nfc->waiting++;
    if (broken == VIX_OK) {
        *nfc->last = ask;
        nfc->last = &ask->next;
        atomic_store(&nfc->has_new, true);
    }
    pthread_mutex_unlock(&nfc->lock);
    if (broken == VIX_OK)
        wake(nfc);
    else
        ended(nfc, ask, broken);
}

void nfc_add(struct nfc *nfc, uint64_t offset, uint64_t bytes, void *to, DoneFn *done, void *data) {
    struct ask *ask = calloc(1, sizeof *ask);
    if (!ask) abort();
    *ask = (struct ask){.offset = offset, .length = bytes, .left = bytes, .to = to, .done = done, .data = data};
    add(nfc, ask);
}

struct answer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
    VixError result;
};

static void answered(void *data, VixError result) {
    struct answer *answer = data;
    pthread_mutex_lock(&answer->lock);
    answer->over = true;
    answer->result = result;
    pthread_cond_signal(&answer->changed);
    pthread_mutex_unlock(&answer->lock);
}

VixError nfc_allocated(struct nfc *nfc, uint64_t offset, uint64_t chunk_bytes, uint64_t count, unsigned char *bits) {
    while (count > 0) {
        struct answer answer = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, VIX_OK};
        uint32_t part = count < CHUNKS_MAX ? count : CHUNKS_MAX;
        struct ask *ask = calloc(1, sizeof *ask);
        if (!ask) abort();
        *ask = (struct ask){.offset = offset, .chunk_bytes = chunk_bytes, .chunks = part, .to = bits, .done = answered,
                            .data = &answer};
        add(nfc, ask);
        pthread_mutex_lock(&answer.lock);
        while (!answer.over) pthread_cond_wait(&answer.changed, &answer.lock);
        pthread_mutex_unlock(&answer.lock);
        if (answer.result != VIX_OK) return answer.result;
        offset += part * chunk_bytes;
        bits += part / 8;
        count -= part;
    }
    return VIX_OK;
}

void nfc_wait(struct nfc *nfc) {
    pthread_mutex_lock(&nfc->lock);
    while (nfc->waiting > 0) pthread_cond_wait(&nfc->changed, &nfc->lock);
    pthread_mutex_unlock(&nfc->lock);
}

void nfc_close(struct nfc *nfc) {
    const uint64_t one = 1;
    pthread_mutex_lock(&nfc->lock);
    nfc->ending = true;
    pthread_mutex_unlock(&nfc->lock);
    if (write(nfc->wake, &one, sizeof one) < 0 && errno != EAGAIN) abort();
    pthread_join(nfc->thread, NULL);
    if (nfc->broken == VIX_OK) {
        line_set_waiting(&nfc->line, true);
        farewell(&nfc->line, &nfc->opened);
    }
    line_close(&nfc->line);
    close(nfc->wake);
    pthread_cond_destroy(&nfc->changed);
    pthread_mutex_destroy(&nfc->lock);
    free(nfc->packed);
    free(nfc);
}
