/* Drives the pool with kernels that notice a piece that is lost, done twice or begun too early.
 *
 *   pool_driver THREADS SPIN_NANOSECONDS STEPS SEED [ACTION]
 *
 * The cells are plain memory: a sanitizer of threads sees whatever the pool does not order.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

#define MOST_PIECES 48
#define MOST_OPERATIONS 64

/* cells[n]: what the pieces of the operation n wrote, one number each. */
struct cells {
    uint64_t numbers[MOST_OPERATIONS][MOST_PIECES];
};

static uint64_t expected(uint64_t before, int64_t piece)
{
    return before * 31 + (uint64_t)piece + 1;
}

static uint64_t sum(const uint64_t *numbers, int64_t count)
{
    uint64_t total = 0;
    for (int64_t index = 0; index < count; index++) {
        total += numbers[index];
    }
    return total;
}

static int64_t count(const struct zse_operation *operation, const struct zse_step *step, int threads)
{
    (void)step, (void)threads;
    return operation->width;
}

/* Reads all that the operation before wrote, and adds to its own cell: done twice, it shows. */
static void run(const struct zse_operation *operation, const struct zse_step *step, int64_t piece,
                struct zse_worker *worker)
{
    struct cells *cells = (struct cells *)(void *)step->registers[0];
    const int64_t index = operation->layer;
    const uint64_t before =
        index ? sum(cells->numbers[index - 1], MOST_PIECES) : (uint64_t)step->rows;
    memset(worker->scratch, (int)piece, 64);
    for (volatile int turn = 0; turn < operation->input; turn++) {
    }
    cells->numbers[index][piece] += expected(before, piece);
}

static const struct zse_kernel kernel = {count, run};
const struct zse_kernel *const zse_kernels[ZSE_NUM_KINDS] = {[ZSE_OP_ADD] = &kernel};

static int check(const struct zse_operation *operations, int64_t num_operations,
                 const struct cells *cells, int64_t rows)
{
    uint64_t before = (uint64_t)rows;
    for (int64_t index = 0; index < num_operations; index++) {
        const uint64_t *numbers = cells->numbers[index];
        for (int64_t piece = 0; piece < MOST_PIECES; piece++) {
            const uint64_t wanted = piece < operations[index].width ? expected(before, piece) : 0;
            if (numbers[piece] != wanted) {
                printf("operation %d piece %d is %llu, expected %llu\n", (int)index, (int)piece,
                       (unsigned long long)numbers[piece], (unsigned long long)wanted);
                return 1;
            }
        }
        before = sum(numbers, MOST_PIECES);
    }
    return 0;
}

/* The list and the cells are fresh memory each time: one that is still used shows as freed. */
static int run_step(struct zse_pool *pool, unsigned *seed)
{
    const int64_t num_operations = rand_r(seed) % (MOST_OPERATIONS + 1);
    struct zse_operation *operations = calloc(MOST_OPERATIONS, sizeof *operations);
    struct cells *cells = calloc(1, sizeof *cells);
    struct zse_step *step = calloc(1, sizeof *step);
    for (int64_t index = 0; index < num_operations; index++) {
        operations[index].kind = ZSE_OP_ADD;
        operations[index].layer = (int32_t)index;
        operations[index].width = rand_r(seed) % 3 ? rand_r(seed) % 4 : rand_r(seed) % MOST_PIECES;
        operations[index].input = rand_r(seed) % 5 ? 0 : rand_r(seed) % 20000;
    }
    step->rows = rand_r(seed) % 100;
    step->registers[0] = (float *)(void *)cells;
    zse_run(pool, operations, num_operations, step);
    const int failed = check(operations, num_operations, cells, step->rows);
    free(operations);
    free(cells);
    free(step);
    return failed;
}

static int run_steps(struct zse_pool *pool, long num_steps, unsigned *seed)
{
    for (long index = 0; index < num_steps; index++) {
        if (run_step(pool, seed)) {
            return 1;
        }
        if (rand_r(seed) % 16 == 0) {
            const struct timespec idle = {0, rand_r(seed) % 300000};
            nanosleep(&idle, NULL);
        }
    }
    return 0;
}

/* A child of a fork has no threads but its own, and all of a step's pieces are done all the same. */
static int run_in_child(struct zse_pool *pool, unsigned *seed)
{
    const pid_t child = fork();
    if (child == 0) {
        const int failed = run_steps(pool, 20, seed);
        zse_pool_stop(pool);
        _exit(failed);
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status != 0;
}

/* Nanoseconds a step of 200 operations of a few empty pieces takes: what handing over costs. */
static void print_cost(struct zse_pool *pool, long num_steps)
{
    struct zse_operation operations[200] = {0};
    struct cells *cells = calloc(1, sizeof *cells);
    struct zse_step step = {.registers = {(float *)(void *)cells}};
    for (int index = 0; index < 200; index++) {
        operations[index].kind = ZSE_OP_ADD;
        operations[index].layer = index % 2;
        operations[index].width = 4;
    }
    double best = 1e18;
    for (long index = 0; index < num_steps; index++) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        zse_run(pool, operations, 200, &step);
        clock_gettime(CLOCK_MONOTONIC, &end);
        const double taken = (end.tv_sec - begin.tv_sec) * 1e9 + (end.tv_nsec - begin.tv_nsec);
        best = taken < best ? taken : best;
    }
    printf("%.0f ns an operation\n", best / 200);
    free(cells);
}

int main(int num_arguments, char **arguments)
{
    const int num_threads = atoi(arguments[1]);
    const long spin_nanoseconds = atol(arguments[2]);
    const long num_steps = atol(arguments[3]);
    unsigned seed = (unsigned)atoi(arguments[4]);
    const char *action = num_arguments > 5 ? arguments[5] : "";
    const int num_pools = strcmp(action, "many") ? 1 : 40;
    for (int index = 0; index < num_pools; index++) {
        struct zse_pool *pool = zse_pool_start(num_threads, spin_nanoseconds);
        if (!pool) {
            puts("no pool");
            return 2;
        }
        if (!strcmp(action, "cost")) {
            print_cost(pool, num_steps);
        } else if (run_steps(pool, num_steps, &seed)) {
            return 1;
        }
        if (!strcmp(action, "fork") && run_in_child(pool, &seed)) {
            return 1;
        }
        zse_pool_stop(pool);
    }
    return 0;
}
