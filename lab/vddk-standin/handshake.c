/* From a ticket to an open disk: the text lines of authd, the classic messages, and the first frames. All of it
 * waits for the host. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"

enum { CLASSIC_BYTES = 264, LINE_BYTES = 1024, TEXT_BYTES_MAX = 64 << 10 };
enum { CLASSIC_END = 4, CLASSIC_ERROR = 20, CLASSIC_PARAMETERS = 33, CLASSIC_STATUS = 36, CLASSIC_TAG = 43,
       CLASSIC_VERSION = 51, CLASSIC_AIO = 52, CLASSIC_NAME = 54, CLASSIC_BITS = 55 };
enum { NFC_VERSION = 11, NFC_VERSION_MIN = 3, MESSAGES_MAX = 16 };
static const char TAG[] = "PlainText";

/* Up to the end of a line and no byte further: what follows may be TLS. */
static bool read_text(struct line *line, char *text) {
    for (size_t at = 0; at < LINE_BYTES - 1; at++) {
        if (!line_fill(line, text + at, 1)) return false;
        if (text[at] != '\n') continue;
        text[at] = 0;
        return true;
    }
    return false;
}

static bool say(struct line *line, const char *text, const char *wanted) {
    char answer[LINE_BYTES] = "nothing";
    if (line_send_all(line, text, strlen(text)) && read_text(line, answer) &&
        strncmp(answer, wanted, strlen(wanted)) == 0)
        return true;
    warn("[NFC ERROR] NfcNewAuthdConnectionEx: the host answers %.8s with: %.200s", text, answer);
    return false;
}

static VixError take_over(struct line *line, const struct ticket *ticket, bool ahead) {
    enum tls_result tls = line_tls(line, ticket->host, ticket->thumbprint, ahead);
    if (tls == TLS_GOOD) return VIX_OK;
    warn("SSL: %s of the host %s", tls == TLS_FAILED ? "a failed handshake" : "Thumbprint mismatch", ticket->host);
    return VIX_E_SERVER_REFUSED;
}

static VixError authd(struct line *line, const struct ticket *ticket, bool encrypted, bool *tagged) {
    char text[LINE_BYTES];
    if (!read_text(line, text) || strncmp(text, "220 ", 4) != 0) return VIX_E_SERVER_REFUSED;
    *tagged = strstr(text, "SHA256 supported") != NULL;
    VixError error = take_over(line, ticket, false);
    if (error != VIX_OK) return error;
    snprintf(text, sizeof text, "SESSION %s\r\n", ticket->session);
    if (!line_send_all(line, text, strlen(text)) || !say(line, "BANNER \r\n", "220")) return VIX_E_SERVER_REFUSED;
    snprintf(text, sizeof text, "THUMBPRINT_SHA2 %s\r\n", TAG);
    if (*tagged && !say(line, text, "200")) return VIX_E_SERVER_REFUSED;
    snprintf(text, sizeof text, "PROXY %s%s\r\n", ticket->service, encrypted ? "ssl" : "");
    if (!say(line, text, "200 Connect")) return VIX_E_NO_PERMISSION;
    line_end_tls(line);
    return encrypted ? take_over(line, ticket, true) : VIX_OK;
}

static bool send_classic(struct line *line, uint32_t type, const void *body, size_t length) {
    unsigned char message[CLASSIC_BYTES] = {0};
    put32(message, type);
    memcpy(message + 4, body, length);
    return line_send_all(line, message, sizeof message);
}

static bool await_classic(struct line *line, uint32_t wanted, unsigned char *message) {
    for (int tries = 0; tries < MESSAGES_MAX; tries++) {
        if (!line_fill(line, message, CLASSIC_BYTES)) return false;
        uint32_t type = get32(message);
        if (type == wanted) return true;
        if (type != CLASSIC_STATUS) {
            warn("[NFC ERROR] message %u where %u is due", type, wanted);
            return false;
        }
    }
    return false;
}

/* One message to a record of TLS, as hosts take them. */
static VixError classic(struct line *line, bool tagged) {
    static const char name[] = "vddk", operation[] = "nbdmode";
    unsigned char body[CLASSIC_BYTES - 4] = {0}, message[CLASSIC_BYTES];
    if (tagged && !send_classic(line, CLASSIC_TAG, TAG, strlen(TAG))) return VIX_E_SERVER_REFUSED;
    put32(body, NFC_VERSION);
    if (!send_classic(line, CLASSIC_PARAMETERS, "", 0) || !send_classic(line, CLASSIC_VERSION, body, 4) ||
        !await_classic(line, CLASSIC_VERSION, message))
        return VIX_E_SERVER_REFUSED;
    if (get32(message + 4) < NFC_VERSION_MIN) return VIX_E_NOT_SUPPORTED;
    put32(body, strlen(name));
    put32(body + 4, strlen(operation));
    if (!send_classic(line, CLASSIC_NAME, body, 8) || !line_send_all(line, name, strlen(name)) ||
        !line_send_all(line, operation, strlen(operation)))
        return VIX_E_SERVER_REFUSED;
    put32(body, 3);
    if (!send_classic(line, CLASSIC_BITS, body, 4) || !send_classic(line, CLASSIC_AIO, "", 0) ||
        !await_classic(line, CLASSIC_AIO, message))
        return VIX_E_SERVER_REFUSED;
    return VIX_OK;
}

VixError nfc_error(uint64_t code, const char *text) {
    warn("[NFC ERROR] NfcFssrvrProcessErrorMsg: received NFC error %llu from server: %s", (unsigned long long)code, text);
    switch (code) {
    case 5: return VIX_E_OUT_OF_MEMORY;
    case 11: return VIX_E_NO_PERMISSION;
    default: return strstr(text, "does not exist") ? VIX_E_FILE_NOT_FOUND : VIX_E_FILE_ACCESS_ERROR;
    }
}

/* A frame and its answer, whose payload has the size of the question's. */
static VixError ask(struct line *line, uint32_t *op, uint32_t kind, unsigned char *payload, uint32_t length,
                    const char *extra) {
    unsigned char head[HEAD_BYTES], frame[HEAD_BYTES + PAYLOAD_MAX + TEXT_MAX];
    size_t more = strlen(extra);
    put_head(frame, kind, length, *op);
    memcpy(frame + HEAD_BYTES, payload, length);
    memcpy(frame + HEAD_BYTES + length, extra, more);
    if (!line_send_all(line, frame, HEAD_BYTES + length + more) || !line_fill(line, head, sizeof head) ||
        get32(head) != MAGIC || get32(head + 12) != *op)
        return VIX_E_SERVER_REFUSED;
    *op += 1;
    if (get32(head + 4) == KIND_ERROR && get32(head + 8) == ERROR_BYTES) {
        char text[TEXT_MAX] = "";
        unsigned char error[ERROR_BYTES];
        if (!line_fill(line, error, sizeof error) || get32(error + 12) >= sizeof text ||
            !line_fill(line, text, get32(error + 12)))
            return VIX_E_SERVER_REFUSED;
        return nfc_error(get64(error), text);
    }
    if (get32(head + 4) != kind || get32(head + 8) != length) return VIX_E_SERVER_REFUSED;
    return line_fill(line, payload, length) ? VIX_OK : VIX_E_SERVER_REFUSED;
}

static VixError open_disk(struct line *line, const char *path, struct opened *opened) {
    enum { DISK = 2, READ_FLAGS = 0x1e };
    unsigned char payload[PAYLOAD_MAX] = {0};
    put32(payload + 4, config.buffer_bytes);
    put32(payload + 8, config.buffer_count);
    VixError error = ask(line, &opened->next_op, KIND_OPEN_SESSION, payload, 16, "");
    if (error != VIX_OK) return error;
    memset(payload, 0, sizeof payload);
    error = ask(line, &opened->next_op, KIND_SOCKET_OPTIONS, payload, 12, "");
    if (error != VIX_OK) return error;
    put32(payload, 1);
    error = ask(line, &opened->next_op, KIND_POOL, payload, 4, "");
    if (error != VIX_OK) return error;
    memset(payload, 0, sizeof payload);
    put32(payload, strlen(path));
    put32(payload + 16, DISK);
    put32(payload + 20, READ_FLAGS);
    error = ask(line, &opened->next_op, KIND_OPEN_FILE, payload, 60, path);
    if (error != VIX_OK) return error;
    if (get64(payload) != 0) return nfc_error(get64(payload), path);
    opened->handle = get64(payload + 8);
    opened->bytes = get64(payload + 28);
    return VIX_OK;
}

VixError handshake(struct line *line, const struct ticket *ticket, const char *path, bool encrypted,
                   struct opened *opened) {
    bool tagged = false;
    *opened = (struct opened){0};
    if (strlen(path) >= TEXT_MAX) return VIX_E_INVALID_ARG;
    if (!line_connect(line, ticket->host, ticket->port)) {
        warn("[NFC ERROR] the host %s port %u cannot be reached", ticket->host, ticket->port);
        return VIX_E_SERVER_NOT_FOUND;
    }
    VixError error = authd(line, ticket, encrypted, &tagged);
    if (error == VIX_OK) error = classic(line, tagged);
    if (error == VIX_OK) error = open_disk(line, path, opened);
    if (error != VIX_OK) line_close(line);
    return error;
}

/* In order, so that the host frees buffers and lock at once. */
void farewell(struct line *line, struct opened *opened) {
    unsigned char payload[PAYLOAD_MAX] = {0};
    put64(payload, opened->handle);
    if (ask(line, &opened->next_op, KIND_CLOSE_FILE, payload, 8, "") != VIX_OK) return;
    memset(payload, 0, sizeof payload);
    if (ask(line, &opened->next_op, KIND_CLOSE_SESSION, payload, 4, "") == VIX_OK) send_classic(line, CLASSIC_END, "", 0);
}
