/* Threads that run a step's operations together.
 *
 * The work of an operation is claimed piece by piece. Whoever does the last piece of an operation
 * begins the next one, so nobody waits for a thread that has no piece: one that the system does not
 * schedule costs the piece that it holds and no more. A thread without work spins for a while, for
 * the next operation is microseconds away, and then sleeps until there is more than one piece.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE 64
#define MOST_THREADS 1024
#define STACK_BYTES (1 << 20)
/* A look at the clock costs as much as a few of these. */
#define PAUSES_A_LOOK 16

struct thread {
    alignas(CACHE_LINE) _Atomic uint32_t is_asleep; /* a futex; whoever clears it wakes the thread */
    struct zse_worker worker;
    struct zse_pool *pool;
    pthread_t handle;
};

struct zse_pool {
    /* High half: pieces of the current operation; low half: the next one to claim, which goes past
     * the last by one for each thread that asks in vain. */
    alignas(CACHE_LINE) _Atomic uint64_t claims;
    alignas(CACHE_LINE) _Atomic int64_t num_done;
    alignas(CACHE_LINE) _Atomic int32_t num_asleep;
    _Atomic bool is_running;
    _Atomic bool is_stopping;

    /* What a step is, written by the thread that begins an operation while no piece is claimed, and
     * read by those that hold a piece. */
    alignas(CACHE_LINE) const struct zse_operation *operations;
    const struct zse_step *step;
    int64_t num_operations;
    int64_t next_operation;
    int64_t num_pieces;

    int64_t spin_nanoseconds;
    pid_t process;
    int32_t num_threads;
    struct thread threads[];
};

/* --- sleeping --------------------------------------------------------------------------------- */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most */
#endif
}

static int64_t now_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static bool has_piece(uint64_t claims)
{
    return (uint32_t)claims < claims >> 32;
}

/* Whether a thread has a reason to be awake: work, or the end of what it waits for. */
static bool is_needed(struct zse_pool *pool, const struct thread *thread)
{
    if (has_piece(atomic_load(&pool->claims))) {
        return true;
    }
    const bool is_caller = thread == &pool->threads[0];
    return is_caller ? !atomic_load(&pool->is_running) : atomic_load(&pool->is_stopping);
}

static void wake(struct zse_pool *pool, struct thread *thread)
{
    uint32_t asleep = 1;
    if (atomic_compare_exchange_strong(&thread->is_asleep, &asleep, 0)) {
        atomic_fetch_sub(&pool->num_asleep, 1);
        syscall(SYS_futex, &thread->is_asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void wake_some(struct zse_pool *pool, int64_t wanted)
{
    for (int32_t index = 0; index < pool->num_threads && wanted > 0; index++) {
        if (atomic_load(&pool->num_asleep) == 0) {
            return;
        }
        if (atomic_load(&pool->threads[index].is_asleep)) {
            wake(pool, &pool->threads[index]);
            wanted--;
        }
    }
}

/* The thread says that it sleeps and looks once more; who brings work does so and then looks for
 * sleepers. In one order of all these, one of the two sees the other. */
static void sleep_until_needed(struct zse_pool *pool, struct thread *thread)
{
    atomic_fetch_add(&pool->num_asleep, 1);
    atomic_store(&thread->is_asleep, 1);
    while (atomic_load(&thread->is_asleep)) {
        if (is_needed(pool, thread)) {
            wake(pool, thread);
            return;
        }
        syscall(SYS_futex, &thread->is_asleep, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void wait_until_needed(struct zse_pool *pool, struct thread *thread)
{
    if (pool->spin_nanoseconds > 0) {
        const int64_t end = now_nanoseconds() + pool->spin_nanoseconds;
        do {
            for (int turn = 0; turn < PAUSES_A_LOOK; turn++) {
                if (is_needed(pool, thread)) {
                    return;
                }
                relax();
            }
        } while (now_nanoseconds() < end);
    }
    sleep_until_needed(pool, thread);
}

/* --- working ---------------------------------------------------------------------------------- */

/* Begin the next operation that threads can share; what is a single piece is done here. */
static void begin_next(struct zse_pool *pool, struct thread *thread)
{
    while (pool->next_operation < pool->num_operations) {
        const struct zse_operation *operation = &pool->operations[pool->next_operation++];
        const struct zse_kernel *kernel = zse_kernels[operation->kind];
        const int64_t num_pieces = kernel->count_pieces(operation, pool->step, pool->num_threads);
        if (num_pieces > 1) {
            pool->num_pieces = num_pieces;
            atomic_store_explicit(&pool->num_done, 0, memory_order_relaxed);
            atomic_store(&pool->claims, (uint64_t)num_pieces << 32);
            wake_some(pool, num_pieces - 1);
            return;
        }
        if (num_pieces == 1) {
            kernel->run_piece(operation, pool->step, 0, &thread->worker);
        }
    }
    atomic_store(&pool->is_running, false);
    if (atomic_load(&pool->threads[0].is_asleep)) {
        wake(pool, &pool->threads[0]);
    }
}

/* Do pieces of the current operation until all are claimed. Between a claim and the count of what
 * was done, the operation cannot end: only there may the step be looked at. */
static void do_pieces(struct zse_pool *pool, struct thread *thread)
{
    int64_t num_own = 0;
    int64_t num_pieces = 0;
    while (has_piece(atomic_load_explicit(&pool->claims, memory_order_relaxed))) {
        const uint64_t claims = atomic_fetch_add_explicit(&pool->claims, 1, memory_order_acquire);
        if (!has_piece(claims)) {
            break;
        }
        const struct zse_operation *operation = &pool->operations[pool->next_operation - 1];
        num_pieces = pool->num_pieces;
        zse_kernels[operation->kind]->run_piece(operation, pool->step, (uint32_t)claims,
                                                &thread->worker);
        num_own++;
    }
    if (num_own && atomic_fetch_add(&pool->num_done, num_own) + num_own == num_pieces) {
        begin_next(pool, thread);
    }
}

static void run_alone(struct zse_pool *pool)
{
    for (int64_t index = 0; index < pool->num_operations; index++) {
        const struct zse_operation *operation = &pool->operations[index];
        const struct zse_kernel *kernel = zse_kernels[operation->kind];
        const int64_t num_pieces = kernel->count_pieces(operation, pool->step, 1);
        for (int64_t piece = 0; piece < num_pieces; piece++) {
            kernel->run_piece(operation, pool->step, piece, &pool->threads[0].worker);
        }
    }
}

void zse_run(struct zse_pool *pool, const struct zse_operation *operations, int64_t num_operations,
             const struct zse_step *step)
{
    struct thread *caller = &pool->threads[0];
    pool->operations = operations;
    pool->num_operations = num_operations;
    pool->next_operation = 0;
    pool->step = step;
    if (pool->num_threads == 1) {
        run_alone(pool);
        return;
    }
    atomic_store(&pool->is_running, true);
    begin_next(pool, caller);
    while (atomic_load(&pool->is_running)) {
        do_pieces(pool, caller);
        if (atomic_load(&pool->is_running)) {
            wait_until_needed(pool, caller);
        }
    }
}

static void *work(void *argument)
{
    struct thread *thread = argument;
    struct zse_pool *pool = thread->pool;
    while (!atomic_load(&pool->is_stopping)) {
        do_pieces(pool, thread);
        wait_until_needed(pool, thread);
    }
    return NULL;
}

/* --- starting and stopping -------------------------------------------------------------------- */

/* Signals are for the threads of Python: what the pool starts inherits that it takes none. */
static int32_t start_threads(struct zse_pool *pool)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    int32_t num_started = 1;
    if (pthread_attr_init(&attributes)) {
        return num_started;
    }
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (num_started < pool->num_threads) {
        struct thread *thread = &pool->threads[num_started];
        if (pthread_create(&thread->handle, &attributes, work, thread)) {
            break;
        }
        pthread_setname_np(thread->handle, "zse-kernels");
        num_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return num_started;
}

static void stop_threads(struct zse_pool *pool, int32_t num_started)
{
    atomic_store(&pool->is_stopping, true);
    for (int32_t index = 1; index < num_started; index++) {
        wake(pool, &pool->threads[index]);
        pthread_join(pool->threads[index].handle, NULL);
    }
}

static void release(struct zse_pool *pool)
{
    for (int32_t index = 0; index < pool->num_threads; index++) {
        free(pool->threads[index].worker.scratch);
    }
    free(pool);
}

static bool set_up(struct zse_pool *pool)
{
    for (int32_t index = 0; index < pool->num_threads; index++) {
        struct thread *thread = &pool->threads[index];
        struct zse_worker *worker = &thread->worker;
        thread->pool = pool;
        worker->scratch_bytes = ZSE_SCRATCH_BYTES;
        worker->thread = index;
        worker->num_threads = pool->num_threads;
        if (posix_memalign(&worker->scratch, CACHE_LINE, ZSE_SCRATCH_BYTES)) {
            worker->scratch = NULL;
            return false;
        }
    }
    return true;
}

struct zse_pool *zse_pool_start(int32_t num_threads, int64_t spin_nanoseconds)
{
    if (num_threads < 1 || num_threads > MOST_THREADS) {
        return NULL;
    }
    void *memory;
    const size_t num_bytes = sizeof(struct zse_pool) + num_threads * sizeof(struct thread);
    if (posix_memalign(&memory, CACHE_LINE, num_bytes)) {
        return NULL;
    }
    struct zse_pool *pool = memset(memory, 0, num_bytes);
    pool->num_threads = num_threads;
    pool->spin_nanoseconds = spin_nanoseconds;
    pool->process = getpid();
    if (!set_up(pool)) {
        release(pool);
        return NULL;
    }
    const int32_t num_started = start_threads(pool);
    if (num_started < num_threads) {
        stop_threads(pool, num_started);
        release(pool);
        return NULL;
    }
    return pool;
}

void zse_pool_stop(struct zse_pool *pool)
{
    if (!pool) {
        return;
    }
    if (pool->process == getpid()) { /* a child after a fork has the memory and not the threads */
        stop_threads(pool, pool->num_threads);
    }
    release(pool);
}
