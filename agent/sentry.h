#include <stdint.h>

// A list is made of entries without a gap: one of these, a path, a NUL.
enum { sentry_file = 'f', sentry_folder = 'd', sentry_link = 'l' };

// sentry_look sums up what files hold, what is in folders and where links point.
// What cannot be read counts by the number of the error.
uint64_t sentry_look(const char *list, long length);

// sentry_wait looks at one list every period, and at the other every so many
// periods. It returns 1 once a sum is another than given, 0 once the descriptor
// stop can be read, and a negative error number if it cannot wait.
int sentry_wait(const char *often, long often_length, uint64_t often_sum,
                const char *seldom, long seldom_length, uint64_t seldom_sum,
                int every, long period_ms, int stop);
