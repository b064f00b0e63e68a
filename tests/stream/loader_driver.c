// Loads of a random file under a sanitizer: whole, failing, cancelled, cut short. Prints nothing
// unless something is wrong. Linked with loader.c and late_driver.c.
#define _GNU_SOURCE
#include "loader.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAIL_FUNCTION, FAIL_AT, FAIL_CODE, CUT_AT, CUT_FD, CUT_BYTES, HOLD_AT, LIVE };
void late_set(int which, int64_t value);
int64_t late_get(int which);
void late_reset(void);
#define FUNCTIONS(X) X(set_current) X(create_stream) X(destroy_stream) X(synchronize) X(copy) X(pin) X(unpin) X(allocate) X(free)
int late_set_current(void *), late_create_stream(void **, unsigned), late_destroy_stream(void *), late_synchronize(void *);
int late_copy(uint64_t, const void *, size_t, void *), late_pin(void *, size_t, unsigned), late_unpin(void *);
int late_allocate(void **, size_t, unsigned), late_free(void *);

#define SIZE (6 << 20)
static char content[SIZE], block[SIZE];

static int make_file(void) {
  char name[] = "/tmp/zse-loader-XXXXXX";
  int fd = mkstemp(name);
  unlink(name);
  if (fd < 0 || write(fd, content, SIZE) != SIZE) exit(2);
  return fd;
}

// Run one load; return its failure.
static int load(int64_t chunk_bytes, int threads, int buffers, bool is_cancelled, int fd, bool keeps) {
  static struct zse_chunk chunks[SIZE / 4096];
  int64_t count = 0;
  for (int64_t at = 0; at < SIZE; at += chunk_bytes) {
    int64_t length = at + chunk_bytes < SIZE ? chunk_bytes : SIZE - at;
    chunks[count++] = (struct zse_chunk){at, length, at, 0, 1, (int32_t)(at * 7 / SIZE), NULL};
  }
  struct zse_ahead ahead = {NULL, ZSE_IS_HERE, 0};
  if (chunks[0].length % 4096 == 0) {
    ahead.memory = mmap(NULL, (size_t)chunks[0].length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(ahead.memory, content, (size_t)chunks[0].length);
    chunks[0].ahead = &ahead;
  }
#define ADDRESS(name) .name = late_##name,
  const struct zse_driver driver = {FUNCTIONS(ADDRESS) .context = (void *)7};
  const struct zse_file file = {.fd = fd, .direct_fd = -1, .size = SIZE};
  struct zse_areas *areas = threads % 2 ? zse_areas_begin(threads, chunk_bytes) : NULL;
  if (areas && buffers > 1) usleep(2000);
  struct zse_kept *kept = keeps ? zse_keep(&driver, 5 << 20) : NULL;
  const struct zse_order order = {&driver, &file, chunks, count, 7, (uint64_t)block, chunk_bytes, threads, buffers, kept, areas};
  int32_t started;
  memset(block, 0, SIZE);
  struct zse_load *running = zse_load_start(&order, &started);
  if (!running) exit(3);
  if (is_cancelled) zse_load_cancel(running);
  const struct zse_counters *counters = zse_load_counters(running);
  int64_t seen = 0;
  while (!zse_load_wait(running, seen, 50000000)) seen = atomic_load(&counters->num_complete);
  int failure = counters->failure;
  if (!failure && (memcmp(block, content, SIZE) || zse_load_left(running, 3) || counters->landed_bytes != SIZE)) printf("wrong bytes\n");
  zse_load_end(running);
  if (kept && zse_kept_bytes(kept) > 5 << 20) printf("too much is kept\n");
  if (kept) {  // the next load of this size begins with what is kept
    running = zse_load_start(&order, &started);
    if (!running) exit(3);
    while (!zse_load_wait(running, count, 50000000)) continue;
    zse_load_end(running);
    zse_drop(kept);
  }
  if (ahead.memory) munmap(ahead.memory, (size_t)chunks[0].length);
  if (areas) zse_areas_end(areas);
  if (late_get(LIVE)) printf("something was not given back\n");
  return failure;
}

int main(void) {
  srand(5);
  for (int i = 0; i < SIZE; i++) content[i] = (char)rand();
  for (int round = 0; round < 40; round++) {
    int fd = make_file(), kind = round % 5, threads = 1 + rand() % 8;
    int64_t chunk_bytes = (1 + rand() % 1024) * 4096;
    late_reset();
    if (kind == 1) { late_set(FAIL_AT, 1 + rand() % 3); late_set(FAIL_CODE, 700); late_set(FAIL_FUNCTION, rand() % 9); }
    if (kind == 2) { late_set(CUT_FD, fd); late_set(CUT_BYTES, 8192); late_set(CUT_AT, 1); }
    int failure = load(chunk_bytes, threads, 1 + rand() % 3, kind == 3, fd, rand() % 2);
    if (kind == 0 && failure) printf("failure %d of a load that nothing stood in the way of\n", failure);
    if (kind == 3 && failure != ZSE_CANCELLED && failure) printf("failure %d of a cancelled load\n", failure);
    close(fd);
  }
  return 0;
}
