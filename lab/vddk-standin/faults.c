/* Faults on order: each file in the folder `faults` is one, `CALL ACTION [at=BYTES]`.
 *
 *   read error=16064 at=1048576      read die      open stall      connect error=14009
 *
 * It strikes the first such call that reaches beyond `at`, and is removed by that, so it strikes once, whatever
 * the number of processes; one whose name begins with `always` stays. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

static bool is_meant(const char *path, const char *call, uint64_t end, char *action) {
    char named[32] = "";
    unsigned long long at = 0;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    int found = fscanf(file, "%31s %63s at=%llu", named, action, &at);
    fclose(file);
    return found >= 2 && strcmp(named, call) == 0 && end > at;
}

VixError fault(const char *call, uint64_t offset, uint64_t bytes) {
    char folder[TEXT_MAX + 32], path[2 * TEXT_MAX], action[64] = "";
    snprintf(folder, sizeof folder, "%s/faults", config.folder);
    DIR *dir = opendir(folder);
    if (!dir) return VIX_OK;
    bool struck = false;
    for (struct dirent *entry; !struck && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!is_meant(path, call, offset + (bytes ? bytes : 1), action)) continue;
        struck = strncmp(entry->d_name, "always", 6) == 0 || unlink(path) == 0;
    }
    closedir(dir);
    if (!struck) return VIX_OK;
    call_log("fault %s %s at=%llu", call, action, (unsigned long long)offset);
    if (strcmp(action, "die") == 0) kill(getpid(), SIGKILL);
    if (strcmp(action, "stall") == 0)
        for (;;) pause();
    VixError code = strncmp(action, "error=", 6) == 0 ? strtoull(action + 6, NULL, 10) : VIX_E_INVALID_ARG;
    warn("%s fails as ordered with %llu", call, (unsigned long long)code);
    return code;
}
