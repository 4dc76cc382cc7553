/*
 * A stand-in for rsockets (librdmacm.so.1), so that what drover does with them is tested on hosts without a device: TCP at another
 * loopback address. 127.x.y.z is there what 127.(x ^ 128).y.z is here, so that a port is free for "RDMA" that TCP listens at.
 *
 * RDMA_STANDIN_GONE names a file. Once it is there, the device has vanished: nothing that is sent arrives, and there is no such device.
 * RDMA_STANDIN_COUNT names a file to which the number of bytes of each call is added that sent some.
 *
 * RDMA_STANDIN_HELD names a file. While it is there, closing waits, as for a peer that is gone.
 *
 * The library takes its devices down when a process exits, and whoever still uses an rsocket then crashes. This one aborts if one is open.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_int open_sockets;

__attribute__((destructor)) static void take_down(void)
{
	if (open_sockets > 0)
		abort();
}

static int counted(int fd)
{
	if (fd >= 0)
		open_sockets++;
	return fd;
}

static int is_gone(void)
{
	const char *path = getenv("RDMA_STANDIN_GONE");

	return path && access(path, F_OK) == 0;
}

static int moved(const struct sockaddr *address, socklen_t length, struct sockaddr_in *there)
{
	if (address->sa_family != AF_INET || length < sizeof *there) {
		errno = ENODEV;
		return -1;
	}
	memcpy(there, address, sizeof *there);
	if (ntohl(there->sin_addr.s_addr) >> 24 != 127) {
		errno = ENODEV;
		return -1;
	}
	there->sin_addr.s_addr ^= htonl(128 << 16);
	return 0;
}

int ibv_fork_init(void)
{
	return 0;
}

int rsocket(int domain, int type, int protocol)
{
	if (is_gone()) {
		errno = ENODEV;
		return -1;
	}
	return counted(socket(domain, type | SOCK_CLOEXEC, protocol));
}

int rbind(int fd, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_in there;

	return moved(address, length, &there) ? -1 : bind(fd, (struct sockaddr *)&there, sizeof there);
}

int rconnect(int fd, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_in there;

	return moved(address, length, &there) ? -1 : connect(fd, (struct sockaddr *)&there, sizeof there);
}

int rlisten(int fd, int backlog)
{
	return listen(fd, backlog);
}

int raccept(int fd, struct sockaddr *address, socklen_t *length)
{
	return counted(accept4(fd, address, length, SOCK_CLOEXEC));
}

ssize_t rrecv(int fd, void *buffer, size_t length, int flags)
{
	return recv(fd, buffer, length, flags);
}

ssize_t rsend(int fd, const void *buffer, size_t length, int flags)
{
	const char *path = getenv("RDMA_STANDIN_COUNT");
	ssize_t sent;
	int count;

	if (is_gone())
		return length;
	sent = send(fd, buffer, length, flags | MSG_NOSIGNAL);
	if (path && sent > 0) {
		count = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
		dprintf(count, "%zd\n", sent);
		close(count);
	}
	return sent;
}

int rpoll(struct pollfd *fds, nfds_t count, int timeout)
{
	return poll(fds, count, timeout);
}

int rshutdown(int fd, int how)
{
	return shutdown(fd, how);
}

int rclose(int fd)
{
	const char *path = getenv("RDMA_STANDIN_HELD");

	while (path && access(path, F_OK) == 0)
		usleep(10000);
	open_sockets--;
	return close(fd);
}

int rgetsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	return getsockname(fd, address, length);
}

int rgetpeername(int fd, struct sockaddr *address, socklen_t *length)
{
	return getpeername(fd, address, length);
}

int rsetsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	return setsockopt(fd, level, name, value, length);
}

int rgetsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
	return getsockopt(fd, level, name, value, length);
}

int rfcntl(int fd, int command, ...)
{
	va_list more;
	int value;

	va_start(more, command);
	value = va_arg(more, int);
	va_end(more);
	return fcntl(fd, command, value);
}
