#include <stdint.h>

// A list is made of entries without a gap: one of these, a path, a NUL.
enum { sentry_file = 'f', sentry_folder = 'd', sentry_link = 'l', sentry_function = 'p' };

// sentry_look sums up what files hold, what is in folders, where links point, and
// whether PCI functions, of which the path is the folder, are still on the bus.
// What cannot be read counts by the number of the error.
uint64_t sentry_look(const char *entries, long length);

struct sentry_list {
	const char *entries;
	long length;
	uint64_t sum; // as sentry_look had it
	int every;    // how many periods lie between two looks
};

// sentry_wait looks at n lists. It returns 1 once a sum is another than given, 0
// once the descriptor stop can be read, and a negative error number if it cannot
// wait.
int sentry_wait(const struct sentry_list *lists, int n, long period_ms, int stop);
