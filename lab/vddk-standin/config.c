/* Settings, and the log of calls. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

struct config config = {.host = "host", .transports = "nbdssl:nbd", .buffer_bytes = 64 << 10, .buffer_count = 4};

static char *trimmed(char *text) {
    while (isspace((unsigned char)*text)) text++;
    size_t length = strlen(text);
    while (length > 0 && isspace((unsigned char)text[length - 1])) text[--length] = 0;
    if (length > 1 && text[0] == '"' && text[length - 1] == '"') {
        text[length - 1] = 0;
        text++;
    }
    return text;
}

static int set(const char *key, const char *value) {
    struct { const char *key; char *text; } texts[] = {
        {"control", config.control}, {"host", config.host}, {"user", config.user},
        {"password", config.password}, {"cookie", config.cookie}, {"thumbprint", config.thumbprint},
        {"server", config.server}, {"transports", config.transports},
    };
    struct { const char *key; uint64_t *number; } numbers[] = {
        {"nfc_bytes_max", &config.nfc_bytes_max}, {"sessions_max", &config.sessions_max},
        {"latency_us", &config.latency_us}, {"connection_bytes_per_s", &config.connection_bytes_per_s},
        {"host_bytes_per_s", &config.host_bytes_per_s},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(key, texts[i].key) == 0) {
            snprintf(texts[i].text, TEXT_MAX, "%s", value);
            return 0;
        }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(key, numbers[i].key) == 0) {
            *numbers[i].number = strtoull(value, NULL, 10);
            return 0;
        }
    bool by_nfc = strcmp(value, "nfc") == 0;
    if (strcmp(key, "data") != 0 || (!by_nfc && strcmp(value, "file") != 0)) return -1;
    config.by_nfc = by_nfc;
    return 0;
}

/* VDDK itself ignores keys that it does not know, so these do too. */
static int set_vddk(const char *key, const char *value) {
    uint64_t number = strtoull(value, NULL, 10);
    if (strcmp(key, "vixDiskLib.nfcAio.Session.BufSizeIn64KB") == 0 && number > 0 && number <= 64)
        config.buffer_bytes = number << 16;
    else if (strcmp(key, "vixDiskLib.nfcAio.Session.BufCount") == 0 && number > 0 && number <= BUFFERS_MAX)
        config.buffer_count = number;
    return 0;
}

static int read_lines(const char *path, int (*use)(const char *, const char *)) {
    FILE *file = fopen(path, "re");
    if (!file) {
        warn("%s: %s", path, strerror(errno));
        return -1;
    }
    char line[2 * TEXT_MAX];
    int bad = 0;
    while (fgets(line, sizeof line, file)) {
        char *equals = strchr(line, '='), *key = trimmed(line);
        if (*key == 0 || *key == '#') continue;
        if (!equals) {
            warn("%s: no '=' in '%s'", path, key);
            bad = -1;
            break;
        }
        *equals = 0;
        if (use(trimmed(line), trimmed(equals + 1)) < 0) {
            warn("%s: unknown key '%s'", path, trimmed(line));
            bad = -1;
            break;
        }
    }
    fclose(file);
    return bad;
}

int config_read(const char *libdir, const char *vddk_file) {
    char path[TEXT_MAX + 32];
    snprintf(config.folder, sizeof config.folder, "%s", libdir);
    snprintf(path, sizeof path, "%s/standin.conf", libdir);
    if (read_lines(path, set) < 0) return -1;
    return vddk_file ? read_lines(vddk_file, set_vddk) : 0;
}

void call_log(const char *format, ...) {
    char path[TEXT_MAX + 32], line[2 * TEXT_MAX];
    snprintf(path, sizeof path, "%s/calls.log", config.folder);
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = sizeof line - 2;
    line[length++] = '\n';
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    if (write(fd, line, length) < 0) warn("%s: %s", path, strerror(errno));
    close(fd);
}
