/* Several processes that compute one step together, each its share: bells that they ring for each
 * other, and sums over memory that all of them map.
 *
 * At a meeting each rank leaves its rows in a slot of its own, rings its bell and waits for those of
 * the others; then it adds all slots in the order of the ranks, so that all have the same bits.
 * There are two slots a rank, used in turn: who writes one for the second time has met all others in
 * between, who had read it by then.
 */
#define _GNU_SOURCE
#include "zse.h"
#include "vector.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A look at the clock costs as much as a few of these. */
#define PAUSES_A_LOOK 16
/* Who sleeps looks this often whether the ranks have failed. */
#define LOOK_NANOSECONDS 20000000
#define NUMBERS_A_PIECE 8192

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

static int64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Who waits says that it sleeps and lets the kernel look once more; who rings looks for sleepers
 * after it has rung. In one order of all these, one of the two sees the other. */
void zse_bell_ring(struct zse_bell *bell, uint64_t count)
{
    atomic_store((_Atomic uint64_t *)&bell->count, count);
    if (atomic_load((_Atomic uint32_t *)&bell->num_asleep)) {
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

static int has_rung(struct zse_bell *bell, uint64_t count)
{
    return atomic_load_explicit((_Atomic uint64_t *)&bell->count, memory_order_acquire) >= count;
}

static int is_broken(const int32_t *broken)
{
    return broken && atomic_load_explicit((const _Atomic int32_t *)broken, memory_order_relaxed);
}

int32_t zse_bell_wait(struct zse_bell *bell, uint64_t count, int64_t spin_nanoseconds,
                      int64_t timeout_nanoseconds, const int32_t *broken)
{
    if (has_rung(bell, count)) {
        return 1;
    }
    const int64_t start = now_nanoseconds();
    for (int64_t now = start; now - start < spin_nanoseconds; now = now_nanoseconds()) {
        for (int turn = 0; turn < PAUSES_A_LOOK; turn++) {
            if (has_rung(bell, count)) {
                return 1;
            }
            relax();
        }
    }
    int32_t found = 0;
    atomic_fetch_add((_Atomic uint32_t *)&bell->num_asleep, 1);
    while (!(found = has_rung(bell, count))) {
        const int64_t left = timeout_nanoseconds - (now_nanoseconds() - start);
        if (is_broken(broken)) {
            found = -1;
            break;
        }
        if (left <= 0) {
            break;
        }
        const uint64_t seen = atomic_load((_Atomic uint64_t *)&bell->count);
        if (seen >= count) {
            continue;
        }
        const int64_t nap = left < LOOK_NANOSECONDS ? left : LOOK_NANOSECONDS;
        const struct timespec longest = {nap / 1000000000, nap % 1000000000};
        syscall(SYS_futex, &bell->count, FUTEX_WAIT, (uint32_t)seen, &longest, NULL, 0);
    }
    atomic_fetch_sub((_Atomic uint32_t *)&bell->num_asleep, 1);
    return found;
}

void zse_copy_pieces(const char *source, int64_t stride_bytes, int64_t piece_bytes,
                     int64_t num_pieces, char *output)
{
    for (int64_t index = 0; index < num_pieces; index++) {
        memcpy(output + index * piece_bytes, source + index * stride_bytes, piece_bytes);
    }
}

/* --- operations ------------------------------------------------------------------------------- */

static float *slot_of(const struct zse_ranks *ranks, uint64_t meeting, int rank)
{
    const int64_t number = (int64_t)(meeting & 1) * ranks->num_ranks + rank;
    return (float *)(ranks->slots + number * ranks->slot_bytes);
}

static int64_t rows_of(const struct zse_operation *operation, const struct zse_step *step)
{
    return operation->row_set == ZSE_WANTED_ROWS ? step->num_wanted : step->rows;
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads)
{
    const int64_t numbers = rows_of(operation, step) * operation->width;
    (void)num_threads;
    return (numbers + NUMBERS_A_PIECE - 1) / NUMBERS_A_PIECE;
}

static int64_t numbers_of_piece(const struct zse_operation *operation, const struct zse_step *step,
                                int64_t piece)
{
    const int64_t left = rows_of(operation, step) * operation->width - piece * NUMBERS_A_PIECE;
    return left < NUMBERS_A_PIECE ? left : NUMBERS_A_PIECE;
}

static void run_offer_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker)
{
    const struct zse_ranks *ranks = step->ranks;
    (void)worker;
    memcpy(slot_of(ranks, ranks->num_meetings + 1, ranks->rank) + piece * NUMBERS_A_PIECE,
           step->registers[operation->input] + piece * NUMBERS_A_PIECE,
           numbers_of_piece(operation, step, piece) * sizeof(float));
}

const struct zse_kernel zse_offer = {count_pieces, run_offer_piece};

static int64_t count_one(const struct zse_operation *operation, const struct zse_step *step,
                         int num_threads)
{
    (void)operation;
    (void)step;
    (void)num_threads;
    return 1;
}

static void run_meeting(const struct zse_operation *operation, const struct zse_step *step,
                        int64_t piece, struct zse_worker *worker)
{
    struct zse_ranks *ranks = step->ranks;
    const uint64_t meeting = ++ranks->num_meetings;
    (void)operation;
    (void)piece;
    (void)worker;
    zse_bell_ring(&ranks->bells[ranks->rank], meeting);
    for (int rank = 0; rank < ranks->num_ranks && !ranks->has_failed; rank++) {
        if (rank != ranks->rank) {
            ranks->has_failed =
                zse_bell_wait(&ranks->bells[rank], meeting, ranks->spin_nanoseconds,
                              ranks->timeout_nanoseconds, ranks->broken) != 1;
        }
    }
}

const struct zse_kernel zse_meet = {count_one, run_meeting};

static void run_sum_piece(const struct zse_operation *operation, const struct zse_step *step,
                          int64_t piece, struct zse_worker *worker)
{
    const struct zse_ranks *ranks = step->ranks;
    const int64_t first = piece * NUMBERS_A_PIECE;
    const int64_t count = numbers_of_piece(operation, step, piece);
    float *output = step->registers[operation->output] + first;
    (void)worker;
    for (int64_t index = 0; index < count; index += VECTOR_LANES) {
        const int64_t left = count - index;
        vfloat sum = vload_some(slot_of(ranks, ranks->num_meetings, 0) + first + index, left);
        for (int rank = 1; rank < ranks->num_ranks; rank++) {
            sum += vload_some(slot_of(ranks, ranks->num_meetings, rank) + first + index, left);
        }
        vstore_some(output + index, sum, left);
    }
}

const struct zse_kernel zse_sum_ranks = {count_pieces, run_sum_piece};

static int64_t count_wanted(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads)
{
    (void)num_threads;
    (void)operation;
    return step->num_wanted * step->ranks->num_ranks;
}

/* Rank by rank `width` columns, the last has what is left. */
static void run_collect_piece(const struct zse_operation *operation, const struct zse_step *step,
                              int64_t piece, struct zse_worker *worker)
{
    const struct zse_ranks *ranks = step->ranks;
    const int64_t row = piece / ranks->num_ranks, rank = piece % ranks->num_ranks;
    const int64_t all = ranks->num_tokens, first = rank * operation->width;
    const int64_t count = all - first < operation->width ? all - first : operation->width;
    (void)worker;
    memcpy(step->registers[operation->output] + row * all + first,
           slot_of(ranks, ranks->num_meetings, (int)rank) + row * count, count * sizeof(float));
}

const struct zse_kernel zse_collect = {count_wanted, run_collect_piece};
