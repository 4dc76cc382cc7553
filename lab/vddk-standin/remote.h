/* What of the stand-in speaks to a vCenter or ESXi host. */
#ifndef STANDIN_REMOTE_H
#define STANDIN_REMOTE_H

#include <sys/types.h>

#include "standin.h"

/* line.c */
struct line {
    int fd;
    struct ssl_st *ssl;
};

enum tls_result { TLS_GOOD, TLS_FAILED, TLS_OTHER_CERTIFICATE };
enum { LINE_ENDED = 0, LINE_AGAIN = -1 };

bool line_connect(struct line *line, const char *host, unsigned port);
/* A handshake, after which the certificate is compared with `thumbprint`; an empty one is anybody's. */
enum tls_result line_tls(struct line *line, const char *host, const char *thumbprint, bool ahead);
void line_end_tls(struct line *line);
void line_close(struct line *line);
void line_set_waiting(struct line *line, bool waits);
/* Bytes, or LINE_AGAIN, or LINE_ENDED also for failures. */
ssize_t line_receive(struct line *line, void *to, size_t room);
ssize_t line_send(struct line *line, const void *from, size_t length);
bool line_send_all(struct line *line, const void *from, size_t length);
bool line_fill(struct line *line, void *to, size_t length);

/* soap.c */
struct ticket {
    char host[256], thumbprint[128], service[64], session[256];
    unsigned port;
};

VixError api_ticket(struct api *api, const char *vm, struct ticket *ticket);

#endif
