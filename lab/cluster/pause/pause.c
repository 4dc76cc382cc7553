/* Holds the namespaces of a pod until it is told to end, in place of the image that Kubernetes pulls for it. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static void end(int signal) {
    (void)signal;
    _exit(0);
}

int main(void) {
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;) pause();
}
