/* A TCP connection, in the clear or by TLS. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "remote.h"

enum { TIMEOUT_S = 60, AHEAD_BYTES = 256 << 10 };

bool line_connect(struct line *line, const char *host, unsigned port) {
    char service[16];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    *line = (struct line){.fd = -1};
    if (getaddrinfo(host, service, &hints, &found) != 0) return false;
    line->fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int connected = line->fd < 0 ? -1 : connect(line->fd, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (connected < 0) {
        line_close(line);
        return false;
    }
    const int yes = 1;
    const struct timeval limit = {.tv_sec = TIMEOUT_S};
    setsockopt(line->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    setsockopt(line->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(line->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    return true;
}

static SSL_CTX *context(void) {
    static SSL_CTX *made;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!made) {
        made = SSL_CTX_new(TLS_client_method());
        if (!made) abort();
        /* The certificate is compared with the thumbprint that the caller has. */
        SSL_CTX_set_verify(made, SSL_VERIFY_NONE, NULL);
        SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(made, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    pthread_mutex_unlock(&lock);
    return made;
}

static bool has_thumbprint(SSL *ssl, const char *wanted) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    char text[3 * EVP_MAX_MD_SIZE] = "";
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    bool made = certificate && X509_digest(certificate, EVP_sha1(), digest, &length);
    X509_free(certificate);
    for (unsigned i = 0; made && i < length; i++) sprintf(text + 3 * i, i + 1 < length ? "%02X:" : "%02X", digest[i]);
    return made && strcasecmp(text, wanted) == 0;
}

enum tls_result line_tls(struct line *line, const char *host, const char *thumbprint, bool ahead) {
    struct in6_addr unused;
    SSL *ssl = SSL_new(context());
    if (!ssl) return TLS_FAILED;
    SSL_set_fd(ssl, line->fd);
    if (inet_pton(AF_INET, host, &unused) != 1 && inet_pton(AF_INET6, host, &unused) != 1)
        SSL_set_tlsext_host_name(ssl, host);
    if (ahead) {
        /* Many records by one call of the kernel. */
        SSL_set_default_read_buffer_len(ssl, AHEAD_BYTES);
        SSL_set_read_ahead(ssl, 1);
    }
    ERR_clear_error();
    line->ssl = ssl;
    if (SSL_connect(ssl) != 1) return TLS_FAILED;
    return *thumbprint == 0 || has_thumbprint(ssl, thumbprint) ? TLS_GOOD : TLS_OTHER_CERTIFICATE;
}

/* The peer does not expect to be told. */
void line_end_tls(struct line *line) {
    if (!line->ssl) return;
    SSL_set_quiet_shutdown(line->ssl, 1);
    SSL_free(line->ssl);
    line->ssl = NULL;
}

void line_close(struct line *line) {
    line_end_tls(line);
    if (line->fd >= 0) close(line->fd);
    line->fd = -1;
}

void line_set_waiting(struct line *line, bool waits) {
    int flags = fcntl(line->fd, F_GETFL);
    fcntl(line->fd, F_SETFL, waits ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

static ssize_t result_of(struct line *line, int result) {
    if (result > 0) return result;
    int error = SSL_get_error(line->ssl, result);
    return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? LINE_AGAIN : LINE_ENDED;
}

static ssize_t result_of_call(ssize_t result) {
    if (result > 0) return result;
    return result < 0 && (errno == EAGAIN || errno == EINTR) ? LINE_AGAIN : LINE_ENDED;
}

ssize_t line_receive(struct line *line, void *to, size_t room) {
    if (!line->ssl) return result_of_call(recv(line->fd, to, room, 0));
    ERR_clear_error();
    return result_of(line, SSL_read(line->ssl, to, room < 1 << 30 ? room : 1 << 30));
}

ssize_t line_send(struct line *line, const void *from, size_t length) {
    if (!line->ssl) return result_of_call(send(line->fd, from, length, MSG_NOSIGNAL));
    ERR_clear_error();
    return result_of(line, SSL_write(line->ssl, from, length));
}

bool line_send_all(struct line *line, const void *from, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t sent = line_send(line, (const char *)from + at, length - at);
        if (sent <= 0) return false;
        at += sent;
    }
    return true;
}

bool line_fill(struct line *line, void *to, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t got = line_receive(line, (char *)to + at, length - at);
        if (got <= 0) return false;
        at += got;
    }
    return true;
}
