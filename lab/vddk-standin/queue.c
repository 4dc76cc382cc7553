/* Reads of one open disk. NFC's asynchronous session has a few buffers: a request is cut into pieces of a
 * buffer's size, and as many pieces are under way as there are buffers. Each takes the latency, then its share
 * of the connection's and the host's rate. So the rate of a far host is buffers x size / latency. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "standin.h"

struct request {
    uint64_t pieces;
    VixError result;
    DoneFn *done;
    void *data;
};

struct piece {
    struct piece *next;
    struct request *request;
    uint64_t offset, bytes;
    unsigned char *to;
};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct piece *first, **last;
    uint64_t requests;
    uint64_t connection_next;
    bool ending;
    int fd;
    uint64_t threads;
    pthread_t thread[BUFFERS_MAX];
};

static VixError read_piece(struct queue *queue, struct piece *piece) {
    VixError error = fault("read", piece->offset, piece->bytes);
    if (error != VIX_OK) return error;
    uint64_t arrived = now_ns() + config.latency_us * 1000;
    uint64_t through = rate_take(&queue->connection_next, piece->bytes);
    sleep_until(arrived > through ? arrived : through);
    for (uint64_t at = 0; at < piece->bytes;) {
        ssize_t got = pread(queue->fd, piece->to + at, piece->bytes - at, piece->offset + at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return VIX_E_FILE_ACCESS_ERROR;
        at += got;
    }
    return VIX_OK;
}

static void *serve(void *arg) {
    struct queue *queue = arg;
    pthread_mutex_lock(&queue->lock);
    for (;;) {
        while (!queue->first && !queue->ending) pthread_cond_wait(&queue->changed, &queue->lock);
        struct piece *piece = queue->first;
        if (!piece) break;
        queue->first = piece->next;
        if (!queue->first) queue->last = &queue->first;
        pthread_mutex_unlock(&queue->lock);
        VixError result = read_piece(queue, piece);
        pthread_mutex_lock(&queue->lock);
        struct request *request = piece->request;
        free(piece);
        if (result != VIX_OK) request->result = result;
        if (--request->pieces > 0) continue;
        pthread_mutex_unlock(&queue->lock);
        request->done(request->data, request->result);
        free(request);
        pthread_mutex_lock(&queue->lock);
        queue->requests--;
        pthread_cond_broadcast(&queue->changed);
    }
    pthread_mutex_unlock(&queue->lock);
    return NULL;
}

struct queue *queue_new(int fd) {
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue) abort();
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->changed, NULL);
    queue->last = &queue->first;
    queue->fd = fd;
    while (queue->threads < config.buffer_count &&
           pthread_create(&queue->thread[queue->threads], NULL, serve, queue) == 0)
        queue->threads++;
    if (queue->threads == 0) abort();
    return queue;
}

void queue_add(struct queue *queue, uint64_t offset, uint64_t bytes, void *to, DoneFn *done, void *data) {
    struct request *request = calloc(1, sizeof *request);
    if (!request) abort();
    request->done = done;
    request->data = data;
    pthread_mutex_lock(&queue->lock);
    queue->requests++;
    for (uint64_t at = 0; at < bytes;) {
        struct piece *piece = calloc(1, sizeof *piece);
        if (!piece) abort();
        uint64_t left = bytes - at;
        piece->request = request;
        piece->offset = offset + at;
        piece->bytes = left < config.buffer_bytes ? left : config.buffer_bytes;
        piece->to = (unsigned char *)to + at;
        at += piece->bytes;
        request->pieces++;
        *queue->last = piece;
        queue->last = &piece->next;
    }
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

void queue_wait(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    while (queue->requests > 0) pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}

void queue_end(struct queue *queue) {
    pthread_mutex_lock(&queue->lock);
    queue->ending = true;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
    for (uint64_t i = 0; i < queue->threads; i++) pthread_join(queue->thread[i], NULL);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->lock);
    close(queue->fd);
    free(queue);
}
