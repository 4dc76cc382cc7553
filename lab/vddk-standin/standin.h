/* Shared by the parts of the stand-in; README.md says what it does. */
#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdbool.h>

#include "vixdisklib.h"

enum { TEXT_MAX = 1024, BUFFERS_MAX = 64 };

/* standin.conf and the file that nbdkit's config= names. */
struct config {
    char folder[TEXT_MAX];
    char control[TEXT_MAX];
    char host[TEXT_MAX];
    char user[TEXT_MAX], password[TEXT_MAX], cookie[TEXT_MAX], thumbprint[TEXT_MAX], server[TEXT_MAX];
    char transports[TEXT_MAX];
    uint64_t nfc_bytes_max; /* 0: no limit */
    uint64_t sessions_max;  /* 0: no limit */
    uint64_t latency_us;
    uint64_t connection_bytes_per_s, host_bytes_per_s; /* 0: no limit */
    uint64_t buffer_bytes, buffer_count;
    bool by_nfc; /* `data=nfc`: from the host by NFC, else from the file itself */
};

extern struct config config;

/* config.c */
int config_read(const char *libdir, const char *vddk_file);
void call_log(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* world.c: whose session it is, which real file is meant, and what the host says to one more open disk. */
bool session_is_alive(const char *cookie);
VixError find_file(const char *vm, const char *snapshot, const char *disk, char *path);
VixError nfc_take(uint64_t bytes, int *slot);
void nfc_give(int slot);
/* When `bytes` more may have passed through this connection and this host; the time in ns to wait for. */
uint64_t rate_take(uint64_t *connection_next, uint64_t bytes);
uint64_t now_ns(void);
void sleep_until(uint64_t ns);

/* faults.c: what is ordered for this call, if anything. Dies or stalls itself. */
VixError fault(const char *call, uint64_t offset, uint64_t bytes);

/* queue.c: a disk's reads, served by as many threads as it has buffers. */
struct queue;
struct queue *queue_new(int fd);
void queue_add(struct queue *queue, uint64_t offset, uint64_t bytes, void *to, DoneFn *done, void *data);
void queue_wait(struct queue *queue);
void queue_end(struct queue *queue);

/* soap.c: a session of the vSphere API. */
struct api;
VixError api_open(const struct connect_params *params, struct api **api);
void api_close(struct api *api);

/* nfc.c: a disk that is read from a host by NFC, by as many requests at once as it has buffers. */
struct nfc;
VixError nfc_open(struct api *api, const char *vm, const char *path, uint32_t flags, bool encrypted, struct nfc **nfc);
uint64_t nfc_bytes(const struct nfc *nfc);
void nfc_add(struct nfc *nfc, uint64_t offset, uint64_t bytes, void *to, DoneFn *done, void *data);
void nfc_wait(struct nfc *nfc);
/* A bit for each chunk, the lowest first; `bits` has room for `count` rounded up to 32. */
VixError nfc_allocated(struct nfc *nfc, uint64_t offset, uint64_t chunk_bytes, uint64_t count, unsigned char *bits);
void nfc_close(struct nfc *nfc);

/* library.c */
void warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
