#define _GNU_SOURCE
#include "sentry.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { limit = 1 << 20 }; // bytes of a file or of a listing that count

static uint64_t mix(uint64_t sum, const void *bytes, long n) {
	for (long i = 0; i < n; i++)
		sum = (sum ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3; // FNV-1a
	return sum;
}

static uint64_t mix_error(uint64_t sum, int error) {
	return mix(sum, &error, sizeof error);
}

static uint64_t look(uint64_t sum, char kind, const char *path) {
	char text[4096] = {0}; // a listing has gaps, which are left as they were
	if (kind == sentry_link) {
		long n = readlink(path, text, sizeof text);
		return n < 0 ? mix_error(sum, errno) : mix_error(mix(sum, text, n), 0);
	}
	// O_NONBLOCK: opening a FIFO must not wait for a writer.
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY | (kind == sentry_folder ? O_DIRECTORY : 0));
	if (fd < 0)
		return mix_error(sum, errno);
	int error = 0;
	for (long total = 0; total < limit;) {
		// A listing has the inodes beside the names: what was remade has another.
		long n = kind == sentry_folder ? syscall(SYS_getdents64, fd, text, sizeof text) : read(fd, text, sizeof text);
		if (n < 0)
			error = errno;
		if (n <= 0)
			break;
		sum = mix(sum, text, n);
		total += n;
		if (n < (long)sizeof text - NAME_MAX - 32)
			break; // there was room for more: to ask again would cost as much
	}
	close(fd);
	return mix_error(sum, error);
}

uint64_t sentry_look(const char *list, long length) {
	uint64_t sum = 0xcbf29ce484222325;
	for (const char *entry = list; entry < list + length; entry += strlen(entry) + 1)
		sum = look(sum, entry[0], entry + 1);
	return sum;
}

int sentry_wait(const char *often, long often_length, uint64_t often_sum,
                const char *seldom, long seldom_length, uint64_t seldom_sum,
                int every, long period_ms, int stop) {
	struct timespec period = {period_ms / 1000, period_ms % 1000 * 1000000};
	struct pollfd stopped = {stop, POLLIN, 0};
	for (int turn = 1;;) {
		int n = ppoll(&stopped, 1, &period, NULL);
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n < 0)
			continue; // the runtime signals its threads
		if (sentry_look(often, often_length) != often_sum)
			return 1;
		if (turn++ < every)
			continue;
		turn = 1;
		if (sentry_look(seldom, seldom_length) != seldom_sum)
			return 1;
	}
}
