/* AIO frames of NFC, and what the parts that speak them share. */
#ifndef STANDIN_FRAMES_H
#define STANDIN_FRAMES_H

#include <endian.h>
#include <string.h>

#include "remote.h"

enum { HEAD_BYTES = 16, PAYLOAD_MAX = 64, ERROR_BYTES = 16, IO_BYTES = 44, ALLOCATED_BYTES = 48 };
enum { KIND_ERROR = 1, KIND_OPEN_SESSION = 2, KIND_CLOSE_SESSION = 3, KIND_OPEN_FILE = 4, KIND_CLOSE_FILE = 5, KIND_IO = 7,
       KIND_SOCKET_OPTIONS = 9, KIND_ALLOCATED = 13, KIND_POOL = 22 };
enum { CODEC_NONE = 0, CODEC_SKIPZ = 3 };
#define MAGIC 0xA100DA7Au

static inline uint32_t get32(const unsigned char *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}

static inline uint64_t get64(const unsigned char *at) { return get32(at) | (uint64_t)get32(at + 4) << 32; }

static inline void put32(unsigned char *at, uint32_t value) {
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}

static inline void put64(unsigned char *at, uint64_t value) {
    put32(at, value);
    put32(at + 4, value >> 32);
}

static inline void put_head(unsigned char *at, uint32_t kind, uint32_t payload, uint32_t op) {
    put32(at, MAGIC);
    put32(at + 4, kind);
    put32(at + 8, payload);
    put32(at + 12, op);
}

/* handshake.c */
struct opened {
    uint64_t handle, bytes;
    uint32_t next_op;
};

VixError handshake(struct line *line, const struct ticket *ticket, const char *path, bool encrypted, struct opened *opened);
void farewell(struct line *line, struct opened *opened);
/* Warns of an error of the host, and gives VDDK's code for it. */
VixError nfc_error(uint64_t code, const char *text);

/* skipz.c: zeros are left out. False if it is none. */
bool skipz_unpack(const unsigned char *packed, size_t length, unsigned char *to, size_t room);

#endif
