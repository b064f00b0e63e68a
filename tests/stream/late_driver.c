// A driver that copies as late as it may: a buffer that is filled or freed too early gives wrong
// bytes or a code. Told what goes wrong by late_set, asked by late_get. Device memory is ordinary.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAIL_FUNCTION, FAIL_AT, FAIL_CODE, CUT_AT, CUT_FD, CUT_BYTES, HOLD_AT, LIVE, COPIES, PINNED, MOST_PINNED, HELD, NUM };
static int64_t facts[NUM];
static int64_t calls[9];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t go_on = PTHREAD_COND_INITIALIZER;
static __thread void *current;

typedef struct Copy { uint64_t to; const char *from; size_t length; struct Copy *next; } Copy;
typedef struct Stream { Copy *first, **last; struct Stream *next; } Stream;
static Stream *streams;

void late_set(int which, int64_t value) {
  pthread_mutex_lock(&lock);
  facts[which] = value;
  pthread_cond_broadcast(&go_on);
  pthread_mutex_unlock(&lock);
}
int64_t late_get(int which) {
  pthread_mutex_lock(&lock);
  int64_t value = facts[which];
  pthread_mutex_unlock(&lock);
  return value;
}
void late_reset(void) {
  pthread_mutex_lock(&lock);
  memset(facts, 0, sizeof facts);
  memset(calls, 0, sizeof calls);
  facts[FAIL_FUNCTION] = -1;
  pthread_mutex_unlock(&lock);
}

// Count a call; return the code that it is to fail with. The lock is held behind it.
static int enter(int function) {
  pthread_mutex_lock(&lock);
  int64_t number = ++calls[function];
  if (facts[FAIL_FUNCTION] == function && number >= facts[FAIL_AT]) return (int)facts[FAIL_CODE];
  return function && !current ? 201 : 0;
}
static int leave(int code) { pthread_mutex_unlock(&lock); return code; }

static int is_pending(const char *start, size_t length) {
  for (Stream *stream = streams; stream; stream = stream->next)
    for (Copy *copy = stream->first; copy; copy = copy->next)
      if (copy->from < start + length && start < copy->from + copy->length) return 1;
  return 0;
}
static void pin(int64_t length) {
  facts[LIVE]++;
  facts[PINNED] += length;
  if (facts[PINNED] > facts[MOST_PINNED]) facts[MOST_PINNED] = facts[PINNED];
}

int late_set_current(void *context) { int code = enter(0); current = context; return leave(code); }
int late_create_stream(void **out, unsigned flags) {
  int code = enter(1);
  if (code || flags != 1) return leave(code ? code : 1);
  Stream *stream = calloc(1, sizeof *stream);
  stream->last = &stream->first;
  stream->next = streams;
  streams = *out = stream;
  facts[LIVE]++;
  return leave(0);
}
int late_destroy_stream(void *handle) {
  int code = enter(2);
  Stream *stream = handle, **place = &streams;
  if (stream->first) return leave(1);
  while (*place != stream) place = &(*place)->next;
  *place = stream->next;
  free(stream);
  facts[LIVE]--;
  return leave(code);
}
int late_synchronize(void *handle) {
  int code = enter(3);
  Stream *stream = handle;
  while (stream->first) {
    Copy *copy = stream->first;
    memcpy((void *)copy->to, copy->from, copy->length);
    stream->first = copy->next;
    free(copy);
  }
  stream->last = &stream->first;
  return leave(code);
}
int late_copy(uint64_t to, const void *from, size_t length, void *handle) {
  int code = enter(4);
  if (code) return leave(code);
  facts[COPIES]++;
  if (facts[CUT_AT] == facts[COPIES] && ftruncate((int)facts[CUT_FD], facts[CUT_BYTES])) return leave(1);
  while (facts[HOLD_AT] && facts[COPIES] >= facts[HOLD_AT]) {
    facts[HELD] = 1;
    pthread_cond_wait(&go_on, &lock);
  }
  Stream *stream = handle;
  Copy *copy = malloc(sizeof *copy);
  *copy = (Copy){to, from, length, 0};
  *stream->last = copy;
  stream->last = &copy->next;
  return leave(0);
}
// Registered memory is known by its place in a table, as its length is not told when it goes.
static struct { char *memory; size_t length; } pinned[256];
static int note(char *memory, size_t length) {
  for (int i = 0; i < 256; i++)
    if (!pinned[i].memory) { pinned[i].memory = memory; pinned[i].length = length; pin((int64_t)length); return 0; }
  return 2;
}
static int forget(char *memory) {
  for (int i = 0; i < 256; i++)
    if (pinned[i].memory == memory) {
      if (is_pending(memory, pinned[i].length)) return 1;
      memset(memory, 0xDD, pinned[i].length);
      pinned[i].memory = 0;
      facts[PINNED] -= (int64_t)pinned[i].length;
      facts[LIVE]--;
      return 0;
    }
  return 1;
}
int late_pin(void *memory, size_t length, unsigned flags) { int code = enter(5); return leave(code ? code : flags == 1 ? note(memory, length) : 1); }
int late_unpin(void *memory) { int code = enter(6), found = forget(memory); return leave(code ? code : found); }
int late_allocate(void **out, size_t length, unsigned flags) {
  int code = enter(7);
  if (code || flags != 1) return leave(code ? code : 1);
  *out = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
  return leave(note(*out, length));
}
int late_free(void *memory) {
  int code = enter(8), found = forget(memory);
  if (!found) free(memory);
  return leave(code ? code : found);
}
