/* SkipZ: u32 plain length, u32 0, then runs of u32 offset, u32 length and bytes; what lies between them is zeros. */
#include "frames.h"

bool skipz_unpack(const unsigned char *packed, size_t length, unsigned char *to, size_t room) {
    size_t at = 8, filled = 0;
    if (length < 8 || get32(packed) != room) return false;
    while (at < length) {
        if (length - at < 8) return false;
        size_t from = get32(packed + at), bytes = get32(packed + at + 4);
        at += 8;
        if (from < filled || from > room || bytes > room - from || bytes > length - at) return false;
        memset(to + filled, 0, from - filled);
        memcpy(to + from, packed + at, bytes);
        filled = from + bytes;
        at += bytes;
    }
    memset(to + filled, 0, room - filled);
    return true;
}
