// A CUDA driver without a GPU: libcuda's functions on host memory, for tests of the ctypes layer.
//
// Declared by hand and not from cuda.h, so that it can be built where no CUDA header is; another
// test compares the layouts with the header. Device memory is malloc'ed and remembered, work is
// done at once, a captured stream writes down what it is given and a graph does it when launched.
//
// Told by the environment, read at every call:
//   ZSE_STUB_FAIL=cuMemAlloc_v2:2[,cuInit:100]   the function returns the code
//   ZSE_STUB_VERSION=12040   ZSE_STUB_DEVICES=1   ZSE_STUB_MODE=0 (compute mode)
//   ZSE_STUB_TOTAL=bytes     ZSE_STUB_CAPABILITY=90
//   ZSE_STUB_LINK=1          what GPUs reach each other by: 0 nothing, 1 PCIe, 2 NVLink
// Built with -DOLD_DRIVER it lacks what an old driver lacks.
//
// An image is "\177ELF" and then the text "cc=90;kernel=8,8,4,8" (bytes of each parameter); more
// kernels follow after ';'. Asked by tests: stub_* at the end.

#include "stub_libcuda.h"

// --- errors, driver, device ----------------------------------------------------------------------

static const struct { int code; const char *name, *text; } NAMES[] = {
  {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"}, {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
  {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"}, {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
  {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
  {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}, {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
  {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
  {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
  {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
  {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
  {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
  {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
  {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
static Result text_of(int code, const char **out, int want_name) {
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (NAMES[i].code == code) { *out = want_name ? NAMES[i].name : NAMES[i].text; return 0; }
  *out = 0;
  return 1;
}
Result cuGetErrorName(int code, const char **out) { return text_of(code, out, 1); }
Result cuGetErrorString(int code, const char **out) { return text_of(code, out, 0); }
Result cuDriverGetVersion(int *out) { MAY_FAIL; *out = (int)setting("ZSE_STUB_VERSION", 12040); return 0; }
// What is visible is read once, as the driver does.
static int one_visible = -2;
Result cuInit(unsigned flags) {
  MAY_FAIL;
  if (one_visible == -2) {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    one_visible = named && *named && !strchr(named, ',') ? atoi(named) : -1;
  }
  return flags ? 1 : 0;
}
Result cuDeviceGetCount(int *out) { MAY_FAIL; *out = one_visible >= 0 ? 1 : (int)setting("ZSE_STUB_DEVICES", 1); return 0; }
Result cuDeviceGet(int *out, int ordinal) { MAY_FAIL; *out = 40 + ordinal + (one_visible >= 0 ? one_visible : 0); return 0; }
Result cuDeviceGetName(char *out, int length, int device) { MAY_FAIL; (void)device; snprintf(out, length, "Stub GPU"); return 0; }
Result cuDeviceTotalMem_v2(size_t *out, int device) { MAY_FAIL; (void)device; *out = total_bytes(); return 0; }
Result cuDeviceGetUuid_v2(unsigned char *out, int device) { MAY_FAIL; for (int i = 0; i < 16; i++) out[i] = i; out[15] = device; return 0; }
Result cuDeviceGetAttribute(int *out, int attribute, int device) {
  MAY_FAIL; (void)device;
  int cc = (int)setting("ZSE_STUB_CAPABILITY", 90);
  switch (attribute) {
    case 10: *out = (int)setting("ZSE_STUB_WARP", 32); return 0;
    case 16: *out = 132; return 0;
    case 20: *out = (int)setting("ZSE_STUB_MODE", 0); return 0;
    case 36: *out = 3201000; return 0;
    case 37: *out = 6144; return 0;
    case 38: *out = 60 << 20; return 0;
    case 75: *out = cc / 10; return 0;
    case 76: *out = cc % 10; return 0;
    case 97: *out = 232448; return 0;
  }
  return 1;
}
Result cuDevicePrimaryCtxRetain(void **out, int device) { MAY_FAIL; __sync_fetch_and_add(&contexts, 1); *out = (void *)(intptr_t)(device + 1000); return 0; }
Result cuDevicePrimaryCtxRelease_v2(int device) { MAY_FAIL; (void)device; __sync_fetch_and_sub(&contexts, 1); return 0; }
Result cuCtxSetCurrent(void *context) { MAY_FAIL; current = context; return 0; }
Result cuCtxGetCurrent(void **out) { MAY_FAIL; *out = current; return one_visible == -2 ? 3 : 0; }
Result cuCtxSetLimit(int limit, size_t value) { NEEDS_CONTEXT; return limit == 0 && value ? 0 : 1; }

// --- memory --------------------------------------------------------------------------------------

Result cuMemGetInfo_v2(size_t *free_out, size_t *total_out) { NEEDS_CONTEXT; *free_out = free_bytes(); *total_out = total_bytes(); return 0; }
Result cuMemAlloc_v2(Address *out, size_t length) {
  NEEDS_CONTEXT;
  if (!length) return 1;
  if (length > free_bytes()) return 2;
  void *memory = aligned_alloc(256, (length + 255) / 256 * 256);
  if (!memory) return 2;
  *out = (Address)memory;
  return add_block(*out, length, DEVICE);
}
Result cuMemFree_v2(Address address) {
  NEEDS_CONTEXT;
  int i = find_block(address, DEVICE);
  if (i < 0) return 1;
  free((void *)address);
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemHostAlloc(void **out, size_t length, unsigned flags) {
  NEEDS_CONTEXT; (void)flags;
  *out = aligned_alloc(4096, (length + 4095) / 4096 * 4096);
  return *out ? add_block((Address)*out, length, HOST) : 2;
}
Result cuMemFreeHost(void *memory) {
  NEEDS_CONTEXT;
  int i = find_block((Address)memory, HOST);
  if (i < 0) return 1;
  free(memory);
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemHostRegister_v2(void *memory, size_t length, unsigned flags) {
  NEEDS_CONTEXT; (void)flags;
  return add_block((Address)memory, length, HOST);
}
Result cuMemHostUnregister(void *memory) {
  NEEDS_CONTEXT;
  int i = find_block((Address)memory, HOST);
  if (i < 0) return 1;
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemGetAllocationGranularity(size_t *out, const Properties *properties, int option) {
  MAY_FAIL; (void)option;
  *out = 2 << 20;
  return properties->type == 1 && properties->location.type == 1 ? 0 : 1;
}
Result cuMemAddressReserve(Address *out, size_t length, size_t alignment, Address wish, uint64_t flags) {
  NEEDS_CONTEXT; (void)alignment; (void)wish;
  if (flags || length % (2 << 20)) return 1;
  *out = (Address)aligned_alloc(2 << 20, length);
  return add_block(*out, length, RESERVED);
}
Result cuMemAddressFree(Address address, size_t length) {
  NEEDS_CONTEXT;
  int i = find_block(address, RESERVED);
  if (i < 0 || blocks[i].length != length) return 1;
  for (int k = 0; k < MAX_BLOCKS; k++)
    if (blocks[k].kind == MAPPED && blocks[k].address >= address && blocks[k].address < address + length) return 1;
  free((void *)address);
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemCreate(uint64_t *out, size_t length, const Properties *properties, uint64_t flags) {
  NEEDS_CONTEXT;
  if (flags || length % (2 << 20) || properties->type != 1 || properties->location.type != 1 || properties->location.id < 40) return 1;
  if (length > free_bytes()) return 2;
  int file = -1;
  if (properties->handle_types == 1) {
    file = memfd_create("zse-stub", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)length)) return 2;
  }
  *out = __sync_fetch_and_add(&next_piece, 1);
  return add_shared(*out, length, PIECE, file);
}
Result cuMemRelease(uint64_t piece) {
  NEEDS_CONTEXT;
  int i = find_block(piece, PIECE);
  if (i < 0) return 1;
  if (blocks[i].file >= 0) close(blocks[i].file);
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemExportToShareableHandle(void *out, uint64_t piece, int type, uint64_t flags) {
  NEEDS_CONTEXT;
  int i = find_block(piece, PIECE);
  if (i < 0 || type != 1 || flags || blocks[i].file < 0) return 1;
  *(int *)out = fcntl(blocks[i].file, F_DUPFD_CLOEXEC, 0);
  return 0;
}
Result cuMemImportFromShareableHandle(uint64_t *out, void *handle, int type) {
  NEEDS_CONTEXT;
  struct stat found;
  int file = (int)(intptr_t)handle;
  if (type != 1 || fstat(file, &found) || !found.st_size || found.st_size % (2 << 20)) return 1;
  *out = __sync_fetch_and_add(&next_piece, 1);
  return add_shared(*out, (size_t)found.st_size, PIECE, fcntl(file, F_DUPFD_CLOEXEC, 0));
}
Result cuMemMap(Address address, size_t length, size_t offset, uint64_t piece, uint64_t flags) {
  NEEDS_CONTEXT;
  int i = find_block(piece, PIECE);
  if (i < 0 || blocks[i].length != length || offset || flags) return 1;
  int file = blocks[i].file;
  if (file >= 0 && mmap((void *)address, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) return 1;
  return add_shared(address, length, MAPPED, file);
}
Result cuMemUnmap(Address address, size_t length) {
  NEEDS_CONTEXT;
  int i = find_block(address, MAPPED);
  if (i < 0 || blocks[i].length != length) return 1;
  if (blocks[i].file >= 0)  // what was reserved is freed later, so it must still be memory
    mmap((void *)address, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  blocks[i].kind = FREE;
  return 0;
}
Result cuMemSetAccess(Address address, size_t length, const Access *access, size_t count) {
  NEEDS_CONTEXT;
  return find_block(address, MAPPED) >= 0 && length && count == 1 && access->flags == 3 && access->location.type == 1 ? 0 : 1;
}
Result cuMemHostGetDevicePointer_v2(Address *out, void *memory, unsigned flags) {
  NEEDS_CONTEXT;
  *out = (Address)memory;
  return flags || find_block(*out, HOST) < 0 ? 1 : 0;
}

// --- other GPUs ------------------------------------------------------------------------------------

Result cuDeviceCanAccessPeer(int *out, int device, int peer) {
  MAY_FAIL;
  *out = device != peer && setting("ZSE_STUB_LINK", 1) > 0;
  return 0;
}
Result cuDeviceGetP2PAttribute(int *out, int attribute, int device, int peer) {
  MAY_FAIL;
  if (device == peer) return 1;
  *out = attribute == 3 ? setting("ZSE_STUB_LINK", 1) > 1 : 0;  // atomics: by NVLink alone
  return attribute >= 1 && attribute <= 4 ? 0 : 1;
}

// --- work: done at once, or written down -----------------------------------------------------------

static void do_node(const Node *node) {
  if (node->kind == 0) memcpy((void *)node->to, (void *)node->from, node->length), copies++;
  if (node->kind == 1) memset((void *)node->to, node->byte, node->length);
  if (node->kind == 2 && num_launches < MAX_LAUNCHES) launches[num_launches++] = node->launch;
}
static Result put(void *stream, const Node *node) {
  Graph *graph = stream ? ((Stream *)stream)->capturing : 0;
  if (!graph) { do_node(node); return 0; }
  if (graph->count == MAX_NODES) return 2;
  graph->nodes[graph->count++] = *node;
  return 0;
}
Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t length, void *stream) {
  NEEDS_CONTEXT;
  if (!is_device(to, length)) return 1;
  Node node = {.kind = 0, .to = to, .from = (Address)from, .length = length};
  return put(stream, &node);
}
Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t length, void *stream) {
  NEEDS_CONTEXT;
  if (!is_device(from, length)) return 1;
  Node node = {.kind = 0, .to = (Address)to, .from = from, .length = length};
  return put(stream, &node);
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t length, void *stream) {
  NEEDS_CONTEXT;
  if (!is_device(from, length) || !is_device(to, length)) return 1;
  Node node = {.kind = 0, .to = to, .from = from, .length = length};
  return put(stream, &node);
}
Result cuMemsetD8Async(Address to, unsigned char byte, size_t length, void *stream) {
  NEEDS_CONTEXT;
  if (!is_device(to, length)) return 1;
  Node node = {.kind = 1, .to = to, .length = length, .byte = byte};
  return put(stream, &node);
}

// Values: whoever waits for one that is not there would wait for ever, for all work is done at once.
Result cuStreamWaitValue32_v2(void *stream, Address at, unsigned value, unsigned flags) {
  NEEDS_CONTEXT;
  (void)stream;
  if (flags != 0) return 1;
  return (int)(*(volatile unsigned *)at - value) >= 0 ? 0 : 600;
}
Result cuStreamWriteValue32_v2(void *stream, Address at, unsigned value, unsigned flags) {
  NEEDS_CONTEXT;
  (void)stream;
  if (flags != 0) return 1;
  *(volatile unsigned *)at = value;
  return 0;
}

// --- streams and events ----------------------------------------------------------------------------

Result cuStreamCreate(void **out, unsigned flags) { NEEDS_CONTEXT; *out = calloc(1, sizeof(Stream)); __sync_fetch_and_add(&live_streams, 1); return flags == 1 ? 0 : 1; }
Result cuStreamDestroy_v2(void *stream) { NEEDS_CONTEXT; free(stream); __sync_fetch_and_sub(&live_streams, 1); return 0; }
Result cuStreamSynchronize(void *stream) { NEEDS_CONTEXT; return ((Stream *)stream)->capturing ? 900 : 0; }
Result cuEventCreate(void **out, unsigned flags) {
  NEEDS_CONTEXT;
  Event *event = calloc(1, sizeof(Event));
  event->timing = !(flags & 2);
  *out = event;
  __sync_fetch_and_add(&live_events, 1);
  return 0;
}
Result cuEventDestroy_v2(void *event) { NEEDS_CONTEXT; free(event); __sync_fetch_and_sub(&live_events, 1); return 0; }
Result cuEventRecord(void *event, void *stream) { NEEDS_CONTEXT; (void)stream; clock_gettime(CLOCK_MONOTONIC, &((Event *)event)->at); return 0; }
Result cuEventSynchronize(void *event) { NEEDS_CONTEXT; (void)event; return 0; }
Result cuEventElapsedTime(float *out, void *since, void *until) {
  NEEDS_CONTEXT;
  Event *a = since, *b = until;
  if (!a->timing || !b->timing) return 400;
  *out = (float)((b->at.tv_sec - a->at.tv_sec) * 1e3 + (b->at.tv_nsec - a->at.tv_nsec) / 1e6);
  return 0;
}

// --- kernels ---------------------------------------------------------------------------------------

static void read_kernel(Kernel *kernel, char *text) {
  char *sizes = strchr(text, '=');
  *sizes++ = 0;
  snprintf(kernel->name, sizeof kernel->name, "%s", text);
  for (char *rest = sizes; rest && *rest && kernel->count < MAX_PARAMETERS; ) {
    kernel->sizes[kernel->count++] = (int)strtol(rest, &rest, 10);
    if (*rest == ',') rest++;
  }
}
Result cuModuleLoadData(void **out, const void *image) {
  NEEDS_CONTEXT;
  char text[2048];
  if (memcmp(image, "\177ELF", 4)) return 200;
  snprintf(text, sizeof text, "%s", (const char *)image + 4);
  if (strncmp(text, "cc=", 3)) return 200;
  if (atoi(text + 3) != setting("ZSE_STUB_CAPABILITY", 90)) return 209;
  Module *module = calloc(1, sizeof(Module));
  char *save = 0;
  strtok_r(text, ";", &save);
  for (char *part = strtok_r(0, ";", &save); part && module->num_kernels < MAX_KERNELS; part = strtok_r(0, ";", &save))
    read_kernel(&module->kernels[module->num_kernels++], part);
  *out = module;
  __sync_fetch_and_add(&live_modules, 1);
  return 0;
}
Result cuModuleUnload(void *module) { NEEDS_CONTEXT; free(module); __sync_fetch_and_sub(&live_modules, 1); return 0; }
Result cuModuleGetFunction(void **out, void *module, const char *name) {
  NEEDS_CONTEXT;
  Module *m = module;
  for (int i = 0; i < m->num_kernels; i++)
    if (!strcmp(m->kernels[i].name, name)) { *out = &m->kernels[i]; return 0; }
  return 500;
}
Result cuFuncSetAttribute(void *function, int attribute, int value) {
  NEEDS_CONTEXT;
  if (attribute != 8 || value > 232448) return 1;
  ((Kernel *)function)->shared_allowed = value;
  return 0;
}
Result cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
  NEEDS_CONTEXT;
  Kernel *kernel = function;
  Node node = {.kind = 2};
  Launch *launch = &node.launch;
  if (extra || !config->grid[0] || !config->grid[1] || !config->grid[2]) return 1;
  if (config->shared_bytes > 49152 && (int)config->shared_bytes > kernel->shared_allowed) return 1;
  memcpy(launch->name, kernel->name, sizeof launch->name);
  memcpy(launch->grid, config->grid, sizeof launch->grid);
  memcpy(launch->block, config->block, sizeof launch->block);
  launch->shared_bytes = config->shared_bytes;
  for (unsigned i = 0; i < config->num_attributes; i++) {
    const Attribute *attribute = &config->attributes[i];
    if (attribute->id == 2) launch->cooperative = attribute->value.number;
    else if (attribute->id == 4) memcpy(launch->cluster, attribute->value.dimension, sizeof launch->cluster);
    else if (attribute->id == 5) launch->scheduling = attribute->value.number;
    else if (attribute->id == 6) launch->programmatic = attribute->value.number;
    else return 1;
  }
  launch->count = kernel->count;
  for (int i = 0; i < kernel->count; i++) memcpy(&launch->parameters[i], parameters[i], kernel->sizes[i]);
  return put(config->stream, &node);
}

// --- graphs ----------------------------------------------------------------------------------------

Result cuStreamBeginCapture_v2(void *stream, int mode) {
  NEEDS_CONTEXT;
  Graph *graph = calloc(1, sizeof(Graph));
  graph->nodes = calloc(MAX_NODES, sizeof(Node));
  ((Stream *)stream)->capturing = graph;
  return mode == 2 ? 0 : 1;
}
Result cuStreamEndCapture(void *stream, void **out) {
  Graph *graph = ((Stream *)stream)->capturing;
  ((Stream *)stream)->capturing = 0;
  *out = 0;
  MAY_FAIL;
  if (!graph) return 903;
  *out = graph;
  __sync_fetch_and_add(&live_graphs, 1);
  return 0;
}
Result cuGraphGetNodes(void *graph, void **nodes, size_t *count) { NEEDS_CONTEXT; *count = ((Graph *)graph)->count; return nodes ? 1 : 0; }
Result cuGraphDestroy(void *graph) { NEEDS_CONTEXT; free(((Graph *)graph)->nodes); free(graph); __sync_fetch_and_sub(&live_graphs, 1); return 0; }
#ifndef OLD_DRIVER
Result cuGraphInstantiateWithFlags(void **out, void *graph, uint64_t flags) {
  NEEDS_CONTEXT;
  if (flags) return 1;
  Graph *from = graph, *copy = calloc(1, sizeof(Graph));
  copy->count = from->count;
  copy->nodes = calloc(from->count ? from->count : 1, sizeof(Node));
  memcpy(copy->nodes, from->nodes, from->count * sizeof(Node));
  *out = copy;
  __sync_fetch_and_add(&live_execs, 1);
  return 0;
}
#endif
Result cuGraphUpload(void *exec, void *stream) { NEEDS_CONTEXT; return exec && stream ? 0 : 1; }
Result cuGraphLaunch(void *exec, void *stream) {
  NEEDS_CONTEXT;
  Graph *graph = exec;
  for (int i = 0; i < graph->count; i++) do_node(&graph->nodes[i]);
  return stream ? 0 : 1;
}
Result cuGraphExecDestroy(void *exec) { NEEDS_CONTEXT; free(((Graph *)exec)->nodes); free(exec); __sync_fetch_and_sub(&live_execs, 1); return 0; }

// --- asked by tests --------------------------------------------------------------------------------

void stub_forget_launches(void) { num_launches = 0; }
int stub_num_launches(void) { return num_launches; }
const Launch *stub_launch(int index) { return &launches[index]; }
int stub_copies(void) { return copies; }
size_t stub_bytes(int kind) { return bytes_of(kind); }
int stub_live(void) {
  int count = contexts + live_streams + live_events + live_modules + live_graphs + live_execs;
  for (int i = 0; i < MAX_BLOCKS; i++) count += blocks[i].kind != FREE;
  return count;
}
void stub_forget(void) {  // what a lost context took with it
  for (int i = 0; i < MAX_BLOCKS; i++) blocks[i].kind = FREE;
  contexts = live_streams = live_events = live_modules = live_graphs = live_execs = 0;
}
void stub_reset(void) { num_launches = 0; copies = 0; current = 0; }
