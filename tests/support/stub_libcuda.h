// What the stub driver remembers, and the shapes of what it is given. See stub_libcuda.c.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef int Result;
typedef uint64_t Address;
typedef struct { int type, id; } Location;
typedef struct { int type, handle_types; Location location; void *windows; unsigned char flags[8]; } Properties;
typedef struct { Location location; int flags; } Access;
typedef struct { int id; char pad[4]; union { char pad[64]; int number; unsigned dimension[3]; } value; } Attribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  Attribute *attributes;
  unsigned num_attributes;
} Config;

enum { MAX_BLOCKS = 4096, MAX_LAUNCHES = 4096, MAX_PARAMETERS = 64, MAX_KERNELS = 8, MAX_NODES = 1024 };

typedef struct { char name[128]; int count, sizes[MAX_PARAMETERS], shared_allowed; } Kernel;
typedef struct { int num_kernels; Kernel kernels[MAX_KERNELS]; } Module;
typedef struct {
  char name[128];
  unsigned grid[3], block[3], shared_bytes, cluster[3];
  int programmatic, cooperative, scheduling, count;
  uint64_t parameters[MAX_PARAMETERS];
} Launch;
typedef struct { int kind; Address to; Address from; size_t length; unsigned char byte; Launch launch; } Node;
typedef struct { int count; Node *nodes; } Graph;
typedef struct { Graph *capturing; } Stream;
typedef struct { struct timespec at; int timing; } Event;

static struct { Address address; size_t length; int kind, file; } blocks[MAX_BLOCKS];  // kinds below; file of what is shared, or -1
enum { FREE, DEVICE, HOST, RESERVED, PIECE, MAPPED, TAKEN };
static Launch launches[MAX_LAUNCHES];
static int num_launches, contexts, live_streams, live_events, live_modules, live_graphs, live_execs, copies;
static _Thread_local void *current;

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? atol(text) : otherwise;
}

static int told_to_fail(const char *function) {
  const char *text = getenv("ZSE_STUB_FAIL");
  size_t length = strlen(function);
  while (text && *text) {
    if (!strncmp(text, function, length) && text[length] == ':') return atoi(text + length + 1);
    text = strchr(text, ',');
    if (text) text++;
  }
  return 0;
}
#define MAY_FAIL int told = told_to_fail(__func__); if (told) return told
#define NEEDS_CONTEXT MAY_FAIL; if (!current) return 201

static uint64_t next_piece = 7000;

static int add_shared(Address address, size_t length, int kind, int file) {
  for (int i = 0; i < MAX_BLOCKS; i++)
    if (__sync_bool_compare_and_swap(&blocks[i].kind, FREE, TAKEN)) {  // ranks are threads in some tests
      blocks[i].address = address; blocks[i].length = length; blocks[i].file = file; blocks[i].kind = kind;
      return 0;
    }
  return 2;
}
static int add_block(Address address, size_t length, int kind) { return add_shared(address, length, kind, -1); }
static int find_block(Address address, int kind) {
  for (int i = 0; i < MAX_BLOCKS; i++)
    if (blocks[i].kind == kind && blocks[i].address == address) return i;
  return -1;
}
static size_t bytes_of(int kind) {
  size_t sum = 0;
  for (int i = 0; i < MAX_BLOCKS; i++) if (blocks[i].kind == kind) sum += blocks[i].length;
  return sum;
}
static int is_device(Address address, size_t length) {
  for (int i = 0; i < MAX_BLOCKS; i++)
    if ((blocks[i].kind == DEVICE || blocks[i].kind == MAPPED) && address >= blocks[i].address &&
        address + length <= blocks[i].address + blocks[i].length) return 1;
  return 0;
}
static size_t total_bytes(void) { return (size_t)setting("ZSE_STUB_TOTAL", 1L << 30); }
static size_t free_bytes(void) { return total_bytes() - bytes_of(DEVICE) - bytes_of(PIECE); }
