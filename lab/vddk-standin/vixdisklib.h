/* The part of the VDDK's binary interface that nbdkit's vddk plugin uses. Names, order and sizes are those of
 * the interface (VMware's programming guide; the plugin itself); the rest is ours. */
#ifndef STANDIN_VIXDISKLIB_H
#define STANDIN_VIXDISKLIB_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t VixError;
typedef void LogFn(const char *format, va_list args);
typedef void DoneFn(void *data, VixError result);

enum {
    VIX_OK = 0,
    VIX_E_OUT_OF_MEMORY = 2,
    VIX_E_INVALID_ARG = 3,
    VIX_E_FILE_NOT_FOUND = 4,
    VIX_E_NOT_SUPPORTED = 6,
    VIX_E_FILE_ACCESS_ERROR = 13,
    VIX_E_NO_PERMISSION = 3014,
    VIX_E_SERVER_NOT_FOUND = 14008,
    VIX_E_SERVER_REFUSED = 14009,
    VIX_E_TOO_MANY_SESSIONS = 14011,
    VIX_ASYNC = 25000,
};

enum { SECTOR_BYTES = 512, OPEN_READ_ONLY = 4, READ_BYTES_MAX = 1 << 30 };
enum { CRED_UID = 1, CRED_SESSION = 2 };

struct connect_params {
    char *vmx_spec; /* moref=vm-42 */
    char *server;
    char *thumbprint;
    long reserved1;
    int cred_type;
    union {
        struct { char *user, *password; } uid;
        struct { char *cookie, *user, *key; } session;
        void *reserved2;
    } creds;
    uint32_t port, nfc_port;
    char *reserved3;
    char reserved4[8];
    void *reserved5;
    struct { char *id, *datastore, *ss_id; } storage_object;
    int spec_type;
};

struct info {
    struct { uint32_t cylinders, heads, sectors; } bios, physical;
    uint64_t capacity; /* sectors */
    int adapter;
    int links;
    char *parent_hint;
    char *uuid;
    uint32_t logical_sector, physical_sector;
};

struct block { uint64_t offset, length; }; /* sectors */
struct block_list { uint32_t count; struct block blocks[]; };

#endif
