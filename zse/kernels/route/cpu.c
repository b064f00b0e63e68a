/* Which experts each row goes through, and which rows each expert has.
 *
 * Rows choose by themselves. Then the rows of chosen experts are put in the order of the experts:
 * those of an expert follow each other, so that its weights are read once for all of them.
 */
#include <float.h>

#include "../native/share.h"
#include "../native/vector_math.h"

/* --- choosing --------------------------------------------------------------------------------- */

/* Below every score, and what a score becomes that is not to be chosen. */
#define NO_SCORE (-FLT_MAX)
/* Keeps a sum of sigmoids from being zero; nothing beside a sum of a softmax. */
#define SIGMOID_FLOOR 1e-20f

/* The place of the largest number, the first among equals; 0 where none is a number. */
static int32_t place_of_largest(const float *numbers, int32_t count) {
    vfloat largest = vbroadcast(-FLT_MAX);
    int32_t i = 0;
    for (; i + VECTOR_LANES <= count; i += VECTOR_LANES)
        largest = vlargest(vload(numbers + i), largest);
    float most = vmaximum(largest);
    for (; i < count; i++) most = numbers[i] > most ? numbers[i] : most;
    for (i = 0; i < count; i++)
        if (numbers[i] == most) return i;
    return 0;
}

static void softmax(float *numbers, int32_t count) {
    float largest = numbers[place_of_largest(numbers, count)];
    vfloat sums = {0};
    for (int32_t i = 0; i < count; i += VECTOR_LANES) {
        vfloat weights = vexp(vload_some(numbers + i, count - i) - largest);
        vstore_some(numbers + i, weights, count - i);
        sums += vload_some(numbers + i, count - i);
    }
    float sum = vsum(sums);
    for (int32_t i = 0; i < count; i++) numbers[i] /= sum;
}

static void score(const struct zse_experts *experts, float *scores) {
    int32_t count = experts->num_experts;
    if (experts->scoring == ZSE_SOFTMAX) softmax(scores, count);
    if (experts->scoring != ZSE_SIGMOID) return;
    for (int32_t i = 0; i < count; i += VECTOR_LANES)
        vstore_some(scores + i, vsigmoid(vload_some(scores + i, count - i)), count - i);
}

/* The sum of the best scores of a group. */
static float score_of_group(const struct zse_experts *experts, const float *scores, float *left) {
    int32_t count = experts->num_experts / experts->num_groups;
    float sum = 0.0f;
    memcpy(left, scores, (size_t)count * sizeof *left);
    for (int32_t i = 0; i < experts->scores_in_group; i++) {
        int32_t best = place_of_largest(left, count);
        sum += left[best];
        left[best] = NO_SCORE;
    }
    return sum;
}

/* Leave the scores of the best groups alone. */
static void choose_groups(const struct zse_experts *experts, float *scores, float *scratch) {
    int32_t count = experts->num_experts / experts->num_groups;
    float *group_scores = scratch, *left = group_scores + experts->num_groups;
    for (int32_t group = 0; group < experts->num_groups; group++)
        group_scores[group] = score_of_group(experts, scores + group * count, left);
    for (int32_t i = 0; i < experts->groups_per_token; i++)
        group_scores[place_of_largest(group_scores, experts->num_groups)] = NO_SCORE;
    for (int32_t group = 0; group < experts->num_groups; group++)
        for (int32_t i = 0; group_scores[group] != NO_SCORE && i < count; i++)
            scores[group * count + i] = NO_SCORE;
}

/* Weights of the chosen experts, from their scores. */
static void weigh(const struct zse_experts *experts, struct zse_choice *choices, float *weights) {
    int32_t count = experts->experts_per_token;
    for (int32_t i = 0; i < count; i++) weights[i] = choices[i].weight;
    float sum = 0.0f;
    for (int32_t i = 0; i < count; i++) sum += weights[i];
    if (experts->scoring == ZSE_SOFTMAX_CHOSEN) softmax(weights, count);
    else if (experts->normalizes)
        for (int32_t i = 0; i < count; i++) weights[i] /= sum + SIGMOID_FLOOR;
    for (int32_t i = 0; i < count; i++) {
        const float *scales = experts->expert_scales;
        float scale = scales ? scales[choices[i].expert] : 1.0f;
        choices[i].weight = weights[i] * experts->weight_scale * scale;
    }
}

/* Choose a row's experts. `scratch` has room for three numbers an expert. */
static void route_row(const struct zse_experts *experts, float *scores, struct zse_choice *choices,
                      float *scratch) {
    int32_t count = experts->num_experts;
    float *chosen_by = scratch;
    score(experts, scores);
    memcpy(chosen_by, scores, (size_t)count * sizeof *chosen_by);
    for (int32_t i = 0; experts->selection_bias && i < count; i++)
        chosen_by[i] += experts->selection_bias[i];
    if (experts->num_groups > 1) choose_groups(experts, chosen_by, scratch + count);
    for (int32_t i = 0; i < experts->experts_per_token; i++) {
        int32_t best = place_of_largest(chosen_by, count);
        choices[i] = (struct zse_choice){.expert = best, .weight = scores[best]};
        chosen_by[best] = NO_SCORE;
    }
    weigh(experts, choices, scratch);
}

static int64_t count_row_set_pieces(const struct zse_operation *operation,
                                    const struct zse_step *step, int num_threads) {
    (void)num_threads;
    return count_row_pieces(rows_of_operation(operation, step));
}

static void run_route_piece(const struct zse_operation *operation, const struct zse_step *step,
                            int64_t piece, struct zse_worker *worker) {
    const struct zse_experts *experts = operation->experts;
    struct row_range rows = rows_of_piece(step->rows, piece);
    struct zse_choice *choices = (struct zse_choice *)step->registers[ZSE_CHOICES];
    for (int64_t row = rows.first; row < rows.end; row++)
        route_row(experts, step->registers[ZSE_ROUTER] + row * experts->num_experts,
                  choices + row * experts->experts_per_token, worker->scratch);
}

const struct zse_kernel zse_route = {count_row_set_pieces, run_route_piece};

/* --- sorting ---------------------------------------------------------------------------------- */

static int64_t count_one_piece(const struct zse_operation *operation, const struct zse_step *step,
                               int num_threads) {
    (void)operation;
    (void)num_threads;
    return step->rows > 0;
}

/* Count each expert's rows, say where they begin, and give each choice its place. */
static void sort_choices(const struct zse_operation *operation, const struct zse_step *step,
                         int64_t piece, struct zse_worker *worker) {
    (void)piece;
    const struct zse_experts *experts = operation->experts;
    int64_t num_choices = step->rows * experts->experts_per_token;
    struct zse_choice *choices = (struct zse_choice *)step->registers[ZSE_CHOICES];
    struct zse_run *runs = (struct zse_run *)step->registers[ZSE_RUNS];
    int32_t *places = memset(worker->scratch, 0, (size_t)experts->num_experts * sizeof *places);
    int32_t num_runs = 0, first = 0;
    for (int64_t i = 0; i < num_choices; i++) places[choices[i].expert]++;
    for (int32_t expert = 0; expert < experts->num_experts; expert++) {
        int32_t end = first + places[expert];
        if (end > first) runs[++num_runs] = (struct zse_run){expert, first, end};
        places[expert] = first;
        first = end;
    }
    runs->end = num_runs;
    for (int64_t i = 0; i < num_choices; i++) choices[i].place = places[choices[i].expert]++;
}

const struct zse_kernel zse_sort = {count_one_piece, sort_choices};
