/* How a chunk gets from the file into a buffer: past the page cache, out of it, or from a prefetch.
 * See loader.h. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE INT64_C(4096)
/* A look at 2048 pages takes 0.2 ms, a sixth of the time in which they are read. */
#define SAMPLES 4
#define SAMPLE_PAGES 16
#define AHEAD_LOOK_NANOSECONDS 100000
/* What lies between two pieces is read with them where that takes no longer than one call more. */
#define GAP_BYTES 8192
#define SPAN_BYTES (128 << 10)

/* Whether at least half of the sampled pages of a range are in the page cache; true also if the
 * kernel cannot be asked. Sampling works because pages enter and leave the cache in runs. */
static bool is_cached(const struct zse_file *file, int64_t offset, int64_t length)
{
    unsigned char found[SAMPLES * SAMPLE_PAGES];
    const int64_t within = file->size - offset < length ? file->size - offset : length;
    const int64_t pages = (within + PAGE - 1) / PAGE;
    if (!file->mapping || pages <= 0)
        return true;
    const bool is_short = pages <= SAMPLES * SAMPLE_PAGES;
    const int64_t samples = is_short ? 1 : SAMPLES, each = is_short ? pages : SAMPLE_PAGES;
    int64_t cached = 0;
    for (int64_t i = 0; i < samples; i++) {
        const int64_t first = is_short ? 0 : (pages - SAMPLE_PAGES) * i / (SAMPLES - 1);
        char *start = (char *)file->mapping + offset + first * PAGE;
        if (mincore(start, (size_t)(each * PAGE), found))
            return true;
        for (int64_t k = 0; k < each; k++)
            cached += found[k] & 1;
    }
    return 2 * cached >= each * samples;
}

static bool wants_direct(const struct zse_file *file, int64_t offset, int64_t length)
{
    if (file->direct_fd < 0 || offset % PAGE || length % PAGE)
        return false;
    return !file->asks_cache || !is_cached(file, offset, length);
}

/* Read a range; return how many bytes were filled. A direct read may stop early; the caller reads
 * the rest through the page cache; a buffered read that stops early has recorded a failure. */
static int64_t read_range(struct zse_load *load, int fd, int64_t offset, char *to, int64_t length)
{
    const bool is_direct = fd == load->file.direct_fd;
    int64_t filled = 0;
    while (filled < length && !(is_direct && filled % PAGE)) {
        const ssize_t count = pread(fd, to + filled, (size_t)(length - filled), offset + filled);
        if (count > 0) {
            filled += count;
        } else if (count == 0) {
            zse_fail(load, ZSE_FILE_SHRANK, 0, offset + filled);
            return filled;
        } else if (is_direct && (errno == EINVAL || errno == EOPNOTSUPP)) {
            return filled; /* O_DIRECT does not work on this file system or with this buffer */
        } else if (errno != EINTR) {
            zse_fail(load, ZSE_READ_FAILED, errno, offset + filled);
            return filled;
        }
    }
    return filled;
}

static bool read_piece(struct zse_load *load, int64_t offset, char *to, int64_t length)
{
    int64_t direct = 0, buffered = 0;
    if (wants_direct(&load->file, offset, length))
        direct = read_range(load, load->file.direct_fd, offset, to, length);
    if (zse_is_stopped(load))
        return false;
    if (direct < length)
        buffered =
            read_range(load, load->file.fd, offset + direct, to + direct, length - direct);
    atomic_fetch_add(&load->counters.direct_bytes, direct);
    atomic_fetch_add(&load->counters.buffered_bytes, buffered);
    return direct + buffered == length;
}

/* Wait for a chunk that another thread prefetches, and copy it into the buffer; false if there is
 * none, or if its prefetch failed. */
static bool take_ahead(struct zse_load *load, const struct zse_chunk *chunk, char *to)
{
    const struct timespec pause = {0, AHEAD_LOOK_NANOSECONDS};
    int32_t state;
    if (!chunk->ahead)
        return false;
    while ((state = __atomic_load_n(&chunk->ahead->state, __ATOMIC_ACQUIRE)) == ZSE_IS_COMING) {
        if (zse_is_stopped(load))
            return false;
        nanosleep(&pause, NULL);
    }
    if (state != ZSE_IS_HERE)
        return false;
    memcpy(to, chunk->ahead->memory, (size_t)chunk->length);
    madvise(chunk->ahead->memory, (size_t)chunk->length, MADV_DONTNEED);
    return true;
}

/* Read pieces that lie close to each other: as many at once as a span holds. */
static bool read_close_pieces(struct zse_load *load, const struct zse_chunk *chunk, char *to,
                              int64_t length)
{
    char span[SPAN_BYTES];
    const int64_t most = 1 + (SPAN_BYTES - length) / chunk->stride;
    for (int64_t first = 0; first < chunk->num_pieces; first += most) {
        const int64_t left = chunk->num_pieces - first, count = left < most ? left : most;
        if (zse_is_stopped(load) || !read_piece(load, chunk->offset + first * chunk->stride, span,
                                            (count - 1) * chunk->stride + length))
            return false;
        for (int64_t i = 0; i < count; i++)
            memcpy(to + (first + i) * length, span + i * chunk->stride, (size_t)length);
    }
    return true;
}

bool zse_read_chunk(struct zse_load *load, const struct zse_chunk *chunk, char *to)
{
    if (take_ahead(load, chunk, to))
        return true;
    const int64_t length = chunk->length / chunk->num_pieces;
    if (chunk->num_pieces > 1 && chunk->stride - length < GAP_BYTES && length < SPAN_BYTES / 2)
        return read_close_pieces(load, chunk, to, length);
    for (int32_t i = 0; i < chunk->num_pieces; i++)
        if (zse_is_stopped(load) ||
            !read_piece(load, chunk->offset + i * chunk->stride, to + i * length, length))
            return false;
    return true;
}
