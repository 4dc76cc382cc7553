/* The calls of VDDK. Only reading is served: by NFC from the host that the API names, or from the disk's own file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "standin.h"

#define PUBLIC __attribute__((visibility("default")))

static LogFn *log_fn, *warn_fn;

struct connection {
    char vm[TEXT_MAX], snapshot[TEXT_MAX], transport[32];
    bool has_snapshot;
    struct api *api; /* by NFC only */
};

struct disk {
    struct queue *queue; /* reads of the file, or */
    struct nfc *nfc;     /* reads by NFC */
    uint64_t bytes;
    int fd, nfc_slot;
    char transport[32];
};

static void say(LogFn *fn, const char *format, va_list args) {
    if (fn) fn(format, args);
}

void warn(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(warn_fn, format, args);
    va_end(args);
}

void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(log_fn, format, args);
    va_end(args);
}

PUBLIC VixError VixDiskLib_InitEx(uint32_t major, uint32_t minor, LogFn *on_log, LogFn *on_warn, LogFn *on_panic,
                                  const char *libdir, const char *config_file) {
    (void)on_panic;
    log_fn = on_log;
    warn_fn = on_warn;
    if (!libdir || config_read(libdir, config_file) < 0) return VIX_E_INVALID_ARG;
    note("VixDiskLib: stand-in for drover's tests, asked for %u.%u. This is not VMware's library.", major, minor);
    note("VixDiskLib: nfcAio session buffers: %llu x %llu bytes", (unsigned long long)config.buffer_count,
         (unsigned long long)config.buffer_bytes);
    return VIX_OK;
}

PUBLIC void VixDiskLib_Exit(void) {}

PUBLIC char *VixDiskLib_GetErrorText(VixError error, const char *unused) {
    (void)unused;
    const char *text = "Unknown error";
    switch (error & 0xffff) {
    case VIX_OK: text = "The operation was successful"; break;
    case VIX_E_OUT_OF_MEMORY: text = "Memory allocation failed. Out of memory."; break;
    case VIX_E_INVALID_ARG: text = "One of the parameters was invalid"; break;
    case VIX_E_FILE_NOT_FOUND: text = "A file was not found"; break;
    case VIX_E_NOT_SUPPORTED: text = "The operation is not supported"; break;
    case VIX_E_FILE_ACCESS_ERROR: text = "You do not have access rights to this file"; break;
    case VIX_E_NO_PERMISSION: text = "Insufficient permissions in the host operating system"; break;
    case VIX_E_SERVER_NOT_FOUND: text = "The specified server could not be contacted"; break;
    case VIX_E_SERVER_REFUSED: text = "The server refused connection"; break;
    case VIX_E_TOO_MANY_SESSIONS: text = "The connection was refused: too many NFC sessions"; break;
    }
    char *copy = strdup(text);
    if (!copy) abort();
    return copy;
}

PUBLIC void VixDiskLib_FreeErrorText(char *text) { free(text); }

PUBLIC struct connect_params *VixDiskLib_AllocateConnectParams(void) { return calloc(1, sizeof(struct connect_params)); }

/* The texts in it are the caller's own. */
PUBLIC void VixDiskLib_FreeConnectParams(struct connect_params *params) { free(params); }

PUBLIC const char *VixDiskLib_ListTransportModes(void) { return "file:nbdssl:nbd"; }

static bool equals(const char *given, const char *wanted) {
    return *wanted == 0 || (given && strcmp(given, wanted) == 0);
}

/* `session`: any session that is logged in at the simulator. */
static bool cookie_fits(const char *cookie) {
    if (strcmp(config.cookie, "session") != 0) return equals(cookie, config.cookie);
    return cookie && session_is_alive(cookie);
}

static VixError check_login(const struct connect_params *params) {
    if (!equals(params->server, config.server)) {
        warn("Host address lookup for server %s failed: Name or service not known", params->server);
        return VIX_E_SERVER_NOT_FOUND;
    }
    if (!params->thumbprint || !equals(params->thumbprint, config.thumbprint)) {
        warn("SSL: Thumbprint mismatch: the server's certificate is not the one given, %s",
             params->thumbprint ? params->thumbprint : "none");
        return VIX_E_SERVER_REFUSED;
    }
    bool by_cookie = params->cred_type == CRED_SESSION;
    bool fits = by_cookie ? cookie_fits(params->creds.session.cookie)
                          : equals(params->creds.uid.user, config.user) && equals(params->creds.uid.password, config.password);
    if (!fits) {
        warn("VixDiskLibVim: Login failure. Callback error %d: %s", VIX_E_NO_PERMISSION,
             by_cookie ? "the session is not authenticated" : "incorrect user name or password");
        return VIX_E_NO_PERMISSION;
    }
    call_log("connect server=%s port=%u nfc_port=%u user=%s by=%s", params->server, params->port, params->nfc_port,
             by_cookie ? params->creds.session.user : params->creds.uid.user, by_cookie ? "cookie" : "password");
    return VIX_OK;
}

/* The first mode asked for that this host has. */
static bool choose_transport(const char *asked, char *chosen) {
    char list[TEXT_MAX], *rest = list;
    snprintf(list, sizeof list, "%s", asked && *asked ? asked : "san:hotadd:nbdssl:nbd");
    for (char *mode; (mode = strsep(&rest, ":"));) {
        char known[TEXT_MAX + 2], wanted[64];
        snprintf(known, sizeof known, ":%s:", config.transports);
        snprintf(wanted, sizeof wanted, ":%.30s:", mode);
        if (*mode && strstr(known, wanted)) {
            snprintf(chosen, 32, "%.30s", mode);
            return true;
        }
        note("VixDiskLib: transport mode %s cannot be used here, trying the next", mode);
    }
    return false;
}

PUBLIC VixError VixDiskLib_Disconnect(struct connection *connection) {
    api_close(connection->api);
    free(connection);
    return VIX_OK;
}

PUBLIC VixError VixDiskLib_ConnectEx(const struct connect_params *params, char read_only, const char *snapshot,
                                     const char *transports, struct connection **out) {
    VixError error = fault("connect", 0, 0);
    if (error != VIX_OK) return error;
    if (!read_only || !params->vmx_spec || strncmp(params->vmx_spec, "moref=", 6) != 0) return VIX_E_INVALID_ARG;
    if ((error = check_login(params)) != VIX_OK) return error;
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) return VIX_E_OUT_OF_MEMORY;
    if (config.by_nfc && (error = api_open(params, &connection->api)) != VIX_OK) {
        free(connection);
        return error;
    }
    snprintf(connection->vm, TEXT_MAX, "%s", params->vmx_spec + 6);
    connection->has_snapshot = snapshot && *snapshot;
    snprintf(connection->snapshot, TEXT_MAX, "%s", snapshot ? snapshot : "");
    if (!choose_transport(transports, connection->transport)) {
        warn("VixDiskLib: none of the transport modes %s can be used", transports);
        VixDiskLib_Disconnect(connection);
        return VIX_E_NOT_SUPPORTED;
    }
    *out = connection;
    return VIX_OK;
}

static VixError open_file(struct connection *connection, const char *name, int *fd, uint64_t *bytes) {
    char path[TEXT_MAX];
    struct stat stat;
    VixError error = find_file(connection->vm, connection->has_snapshot ? connection->snapshot : NULL, name, path);
    if (error != VIX_OK) return error;
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || fstat(*fd, &stat) < 0) return VIX_E_FILE_ACCESS_ERROR;
    *bytes = stat.st_size / SECTOR_BYTES * SECTOR_BYTES;
    return VIX_OK;
}

/* The disk's own file, and what a modelled host says to one more open disk. */
static VixError open_by_file(struct connection *connection, const char *name, struct disk *disk) {
    uint64_t memory = config.buffer_bytes * config.buffer_count;
    VixError error = open_file(connection, name, &disk->fd, &disk->bytes);
    if (error != VIX_OK) return error;
    error = nfc_take(memory, &disk->nfc_slot);
    if (error == VIX_OK) {
        disk->queue = queue_new(disk->fd);
        return VIX_OK;
    }
    close(disk->fd);
    if (error == VIX_E_OUT_OF_MEMORY)
        warn("[NFC ERROR] NfcFssrvrProcessErrorMsg: received NFC error 5 from server: Failed to allocate the "
             "requested %llu bytes", (unsigned long long)memory);
    else if (error == VIX_E_TOO_MANY_SESSIONS)
        warn("[NFC ERROR] NfcNewAuthdConnectionEx: the host has no more NFC sessions: maximum of %llu reached",
             (unsigned long long)config.sessions_max);
    return error;
}

static VixError open_by_nfc(struct connection *connection, const char *name, uint32_t flags, struct disk *disk) {
    bool encrypted = strcmp(connection->transport, "nbdssl") == 0;
    VixError error = nfc_open(connection->api, connection->vm, name, flags, encrypted, &disk->nfc);
    if (error == VIX_OK) disk->bytes = nfc_bytes(disk->nfc);
    return error;
}

PUBLIC VixError VixDiskLib_Open(struct connection *connection, const char *name, uint32_t flags, struct disk **out) {
    struct disk *disk = calloc(1, sizeof *disk);
    if (!disk) return VIX_E_OUT_OF_MEMORY;
    VixError error = fault("open", 0, 0);
    if (error == VIX_OK)
        error = connection->api ? open_by_nfc(connection, name, flags, disk) : open_by_file(connection, name, disk);
    if (error != VIX_OK) {
        free(disk);
        return error;
    }
    memcpy(disk->transport, connection->transport, sizeof disk->transport);
    call_log("open vm=%s snapshot=%s file=%s flags=%u transport=%s aio=%llux%llu", connection->vm,
             connection->snapshot, name, flags, disk->transport, (unsigned long long)(config.buffer_bytes >> 16),
             (unsigned long long)config.buffer_count);
    *out = disk;
    return VIX_OK;
}

PUBLIC const char *VixDiskLib_GetTransportMode(struct disk *disk) { return disk->transport; }

PUBLIC VixError VixDiskLib_Close(struct disk *disk) {
    if (disk->nfc)
        nfc_close(disk->nfc);
    else {
        queue_end(disk->queue);
        nfc_give(disk->nfc_slot);
    }
    call_log("close");
    free(disk);
    return VIX_OK;
}

PUBLIC VixError VixDiskLib_GetInfo(struct disk *disk, struct info **out) {
    struct info *info = calloc(1, sizeof *info);
    if (!info) return VIX_E_OUT_OF_MEMORY;
    info->capacity = disk->bytes / SECTOR_BYTES;
    info->adapter = 3;
    info->links = 1;
    info->logical_sector = info->physical_sector = SECTOR_BYTES;
    *out = info;
    return VIX_OK;
}

PUBLIC void VixDiskLib_FreeInfo(struct info *info) { free(info); }

static bool is_inside(struct disk *disk, uint64_t sector, uint64_t sectors) {
    uint64_t all = disk->bytes / SECTOR_BYTES;
    return sector <= all && sectors <= all - sector;
}

PUBLIC VixError VixDiskLib_ReadAsync(struct disk *disk, uint64_t sector, uint64_t sectors, unsigned char *to,
                                     DoneFn *done, void *data) {
    if (sectors == 0 || !is_inside(disk, sector, sectors)) return VIX_E_INVALID_ARG;
    uint64_t offset = sector * SECTOR_BYTES, bytes = sectors * SECTOR_BYTES;
    if (!disk->nfc) {
        queue_add(disk->queue, offset, bytes, to, done, data);
        return VIX_ASYNC;
    }
    VixError error = fault("read", offset, bytes);
    if (error != VIX_OK || bytes > READ_BYTES_MAX) return error != VIX_OK ? error : VIX_E_INVALID_ARG;
    nfc_add(disk->nfc, offset, bytes, to, done, data);
    return VIX_ASYNC;
}

struct sync {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
    VixError result;
};

static void sync_done(void *data, VixError result) {
    struct sync *sync = data;
    pthread_mutex_lock(&sync->lock);
    sync->over = true;
    sync->result = result;
    pthread_cond_signal(&sync->changed);
    pthread_mutex_unlock(&sync->lock);
}

PUBLIC VixError VixDiskLib_Read(struct disk *disk, uint64_t sector, uint64_t sectors, unsigned char *to) {
    struct sync sync = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, VIX_OK};
    VixError error = VixDiskLib_ReadAsync(disk, sector, sectors, to, sync_done, &sync);
    if (error != VIX_ASYNC) return error;
    pthread_mutex_lock(&sync.lock);
    while (!sync.over) pthread_cond_wait(&sync.changed, &sync.lock);
    pthread_mutex_unlock(&sync.lock);
    return sync.result;
}

PUBLIC VixError VixDiskLib_Wait(struct disk *disk) {
    if (disk->nfc)
        nfc_wait(disk->nfc);
    else
        queue_wait(disk->queue);
    return VIX_OK;
}

PUBLIC VixError VixDiskLib_Flush(struct disk *disk) {
    (void)disk;
    return VIX_OK;
}

PUBLIC VixError VixDiskLib_Write(struct disk *disk, uint64_t sector, uint64_t sectors, const unsigned char *from) {
    (void)disk, (void)sector, (void)sectors, (void)from;
    return VIX_E_NOT_SUPPORTED;
}

PUBLIC VixError VixDiskLib_WriteAsync(struct disk *disk, uint64_t sector, uint64_t sectors,
                                      const unsigned char *from, DoneFn *done, void *data) {
    (void)done, (void)data;
    return VixDiskLib_Write(disk, sector, sectors, from);
}

PUBLIC VixError VixDiskLib_Create(void *connection, const char *path, const void *params, void *progress, void *data) {
    (void)connection, (void)path, (void)params, (void)progress, (void)data;
    return VIX_E_NOT_SUPPORTED;
}

/* Adds a part, to the last one if they touch. */
static struct block_list *add_block(struct block_list *list, uint64_t start, uint64_t stop) {
    uint32_t count = list->count;
    struct block *last = count ? &list->blocks[count - 1] : NULL;
    if (last && (last->offset + last->length) * SECTOR_BYTES == start) {
        last->length += (stop - start) / SECTOR_BYTES;
        return list;
    }
    /* Room for twice as many whenever a power of two is full. */
    if ((count & (count - 1)) == 0) {
        struct block_list *more = realloc(list, sizeof *list + 2 * (count + 1) * sizeof(struct block));
        if (!more) abort();
        list = more;
    }
    list->blocks[list->count++] = (struct block){start / SECTOR_BYTES, (stop - start) / SECTOR_BYTES};
    return list;
}

/* Chunks with data of the file. */
static struct block_list *blocks_of_file(struct disk *disk, struct block_list *list, uint64_t from, uint64_t end,
                                         uint64_t chunk_bytes) {
    while (from < end) {
        off_t data = lseek(disk->fd, from, SEEK_DATA);
        if (data < 0 || (uint64_t)data >= end) break;
        off_t hole = lseek(disk->fd, data, SEEK_HOLE);
        uint64_t start = (uint64_t)data / chunk_bytes * chunk_bytes;
        uint64_t stop = ((uint64_t)hole + chunk_bytes - 1) / chunk_bytes * chunk_bytes;
        if (start < from) start = from;
        if (stop > end) stop = end;
        list = add_block(list, start, stop);
        from = stop;
    }
    return list;
}

/* Chunks that the host calls allocated. It is asked about whole ones; the disk's end counts as allocated. */
static VixError blocks_of_host(struct disk *disk, struct block_list **list, uint64_t from, uint64_t end,
                               uint64_t chunk_bytes) {
    uint64_t count = (end - from) / chunk_bytes;
    unsigned char *bits = calloc((count + 31) / 32 + 1, 4);
    if (!bits) return VIX_E_OUT_OF_MEMORY;
    VixError error = nfc_allocated(disk->nfc, from, chunk_bytes, count, bits);
    for (uint64_t i = 0; error == VIX_OK && i < count; i++)
        if (bits[i / 8] >> i % 8 & 1) *list = add_block(*list, from + i * chunk_bytes, from + (i + 1) * chunk_bytes);
    if (error == VIX_OK && from + count * chunk_bytes < end) *list = add_block(*list, from + count * chunk_bytes, end);
    free(bits);
    return error;
}

/* Whole chunks that hold data, in order. Like the true one it refuses chunks below 64 KiB, and whatever does
 * not lie inside the disk to the last chunk. */
PUBLIC VixError VixDiskLib_QueryAllocatedBlocks(struct disk *disk, uint64_t sector, uint64_t sectors, uint64_t chunk,
                                                struct block_list **out) {
    VixError error = fault("blocks", sector * SECTOR_BYTES, sectors * SECTOR_BYTES);
    if (error != VIX_OK) return error;
    uint64_t chunk_bytes = chunk * SECTOR_BYTES, from = sector * SECTOR_BYTES, end = from + sectors * SECTOR_BYTES;
    if (chunk < 128 || from % chunk_bytes || from > disk->bytes) return VIX_E_INVALID_ARG;
    if (end > disk->bytes) end = disk->bytes;
    struct block_list *list = calloc(1, sizeof *list);
    if (!list) return VIX_E_OUT_OF_MEMORY;
    if (disk->nfc)
        error = blocks_of_host(disk, &list, from, end, chunk_bytes);
    else
        list = blocks_of_file(disk, list, from, end, chunk_bytes);
    if (error != VIX_OK) {
        free(list);
        return error;
    }
    *out = list;
    return VIX_OK;
}

PUBLIC VixError VixDiskLib_FreeBlockList(struct block_list *list) {
    free(list);
    return VIX_OK;
}
