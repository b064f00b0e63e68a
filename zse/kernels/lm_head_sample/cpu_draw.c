/* The draw of a token: temperature, min_p, top_k, top_p, then the random number.
 *
 * Nothing is sorted. What a cut keeps and what a random number points at, in order of likelihood,
 * are both the token at which a running measure, counts or masses, reaches a target. It is found
 * digit by digit of the logits, by histograms from the highest digit down. A first look at the
 * largest logits of blocks leaves few candidates, so that histograms are of a list, not the row. */
#include "draw.h"

/* How logits become masses: e^((logit - highest) / temperature), 1 for the likeliest. */
struct heat {
    double highest;
    double inverse_temperature;
    double min_mass; /* less likely tokens have the mass 0 */
};

/* Tokens to choose from, in order of identity. */
struct candidates {
    const float *logits;
    const int32_t *tokens; /* NULL: the row's own order */
    int64_t count;
    double mass_elsewhere; /* of tokens that are no candidates */
};

/* Tokens that are kept: those with a higher key, and the first `ties` of those with this one. */
struct cut {
    uint32_t key;
    int64_t ties;
    int32_t token; /* the last one kept */
};
static const struct cut everything = {0, INT64_MAX, 0};

/* Tokens of which a guess is made where a cut lies. */
#define SAMPLED_TOKENS 8192

enum measure { COUNTS, MASSES };
/* Where a cut ends: at the token with which the measure reaches the target, or goes beyond it. */
struct target {
    enum measure measure;
    double amount; /* a count, or a part of the whole mass */
    int goes_beyond;
};

/* --- masses ----------------------------------------------------------------------------------- */

/* Masses of the next DOUBLE_LANES logits. */
ALWAYS_INLINE vdouble masses_of(const struct heat *heat, const float *logits) {
    typedef float vhalf __attribute__((vector_size(4 * DOUBLE_LANES)));
    vhalf values;
    memcpy(&values, logits, sizeof values);
    vdouble x = __builtin_convertvector(values, vdouble);
    vdouble masses = vexp_double((x - heat->highest) * heat->inverse_temperature);
    return (vdouble)((vlong)masses & (masses >= heat->min_mass));
}

/* Masses of up to BLOCK_TOKENS logits; returns their sum. */
static double weigh_block(const struct heat *heat, const float *logits, int64_t count,
                          double *masses) {
    vdouble sums = {0};
    int64_t i = 0;
    for (; i + DOUBLE_LANES <= count; i += DOUBLE_LANES) {
        vdouble some = masses_of(heat, logits + i);
        memcpy(masses + i, &some, sizeof some);
        sums += some;
    }
    if (i < count) {
        float tail[DOUBLE_LANES];
        for (int lane = 0; lane < DOUBLE_LANES; lane++)
            tail[lane] = i + lane < count ? logits[i + lane] : -__builtin_inff();
        vdouble some = masses_of(heat, tail);
        memcpy(masses + i, &some, (size_t)(count - i) * sizeof(double));
        sums += some;
    }
    double sum = 0.0;
    for (int lane = 0; lane < DOUBLE_LANES; lane++) sum += sums[lane];
    return sum;
}

static double mass_of(const struct heat *heat, const float *logits, int64_t count) {
    double masses[BLOCK_TOKENS], total = 0.0;
    for (int64_t first = 0; first < count; first += BLOCK_TOKENS) {
        int64_t left = count - first;
        total += weigh_block(heat, logits + first, left < BLOCK_TOKENS ? left : BLOCK_TOKENS,
                             masses);
    }
    return total;
}

/* --- the row in its own order ----------------------------------------------------------------- */

/* Draw from all tokens in order of identity. `sums` has room for one number a block. */
static int32_t draw_in_order(const struct heat *heat, const struct scanned_row *row, double draw,
                             double *sums) {
    double masses[BLOCK_TOKENS], total = 0.0, before = 0.0;
    for (int64_t block = 0; block < row->num_blocks; block++) {
        int64_t first = block * BLOCK_TOKENS;
        sums[block] = weigh_block(heat, row->logits + first, block_end(row, block) - first, masses);
        total += sums[block];
    }
    int64_t block = 0, last = 0;
    for (; block < row->num_blocks; before += sums[block++]) {
        if (sums[block] > 0.0) last = block;
        if (before + sums[block] > draw * total) break;
    }
    if (block == row->num_blocks) before -= sums[block = last]; /* rounded: the last possible */
    int64_t first = block * BLOCK_TOKENS, count = block_end(row, block) - first;
    weigh_block(heat, row->logits + first, count, masses);
    int64_t chosen = 0;
    for (int64_t i = 0; i < count; i++) {
        if (masses[i] > 0.0) chosen = i;
        before += masses[i];
        if (before > draw * total) break;
    }
    return (int32_t)(first + chosen);
}

/* --- order of likelihood ---------------------------------------------------------------------- */

/* A whole number in the order of the logits; the same for both zeros, 0 for what is no number. */
ALWAYS_INLINE uint32_t key_of(float logit) {
    if (logit != logit) return 0;
    float value = logit + 0.0f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static inline float logit_of(uint32_t key) {
    uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

/* What a look at the candidates is for: the histogram of one digit, or the walk over ties. */
struct look {
    struct cut within;   /* what earlier cuts have kept */
    uint32_t prefix;     /* digits that are known */
    int shift;           /* of the digit that is looked at */
    int64_t within_ties; /* keys equal to the cut's that were seen */
    double bins[256];
};

ALWAYS_INLINE int is_kept(struct look *look, uint32_t key) {
    if (key != look->within.key) return key > look->within.key;
    return look->within_ties++ < look->within.ties;
}

static void count_digits(const struct candidates *from, const struct heat *heat,
                         enum measure measure, struct look *look) {
    double masses[BLOCK_TOKENS];
    memset(look->bins, 0, sizeof look->bins);
    look->within_ties = 0;
    for (int64_t first = 0; first < from->count; first += BLOCK_TOKENS) {
        int64_t count = from->count - first < BLOCK_TOKENS ? from->count - first : BLOCK_TOKENS;
        if (measure == MASSES) weigh_block(heat, from->logits + first, count, masses);
        for (int64_t i = 0; i < count; i++) {
            uint32_t key = key_of(from->logits[first + i]);
            if ((uint64_t)key >> (look->shift + 8) != look->prefix || !is_kept(look, key)) continue;
            look->bins[key >> look->shift & 255] += measure == COUNTS ? 1.0 : masses[i];
        }
    }
}

static inline int is_reached(double running, double wanted, int goes_beyond) {
    return goes_beyond ? running > wanted : running >= wanted;
}

/* Choose the digit at which the running measure reaches what is wanted; the lowest one that has
 * any of it where rounding has left it short. */
static uint32_t choose_digit(const struct look *look, double wanted, int goes_beyond,
                             double *running) {
    uint32_t lowest = 0;
    double before = *running, before_lowest = *running;
    for (int digit = 255; digit >= 0; digit--) {
        if (look->bins[digit] <= 0.0) continue;
        lowest = (uint32_t)digit, before_lowest = before;
        if (is_reached(before + look->bins[digit], wanted, goes_beyond)) break;
        before += look->bins[digit];
    }
    *running = before_lowest;
    return lowest;
}

/* Take tokens with the cut's key in order until the running measure reaches what is wanted. */
static void take_ties(const struct candidates *from, const struct heat *heat,
                      const struct target *target, double wanted, double running,
                      struct look *look, struct cut *cut) {
    float logit = logit_of(cut->key);
    double masses[BLOCK_TOKENS];
    weigh_block(heat, &logit, 1, masses);
    double each = target->measure == COUNTS ? 1.0 : masses[0];
    look->within_ties = 0;
    for (int64_t i = 0; i < from->count; i++) {
        if (key_of(from->logits[i]) != cut->key || !is_kept(look, cut->key)) continue;
        cut->token = from->tokens == NULL ? (int32_t)i : from->tokens[i];
        cut->ties++;
        running += each;
        if (is_reached(running, wanted, target->goes_beyond)) return;
    }
}

/* Cut behind the token at which the measure of what is kept reaches the target. */
static struct cut cut_at(const struct candidates *from, const struct heat *heat,
                         const struct cut *within, const struct target *target) {
    struct look look = {.within = *within};
    double wanted = target->amount, running = 0.0;
    for (look.shift = 24; look.shift >= 0; look.shift -= 8) {
        count_digits(from, heat, target->measure, &look);
        if (look.shift == 24 && target->measure == MASSES) {
            double total = within->ties == INT64_MAX ? from->mass_elsewhere : 0.0;
            for (int digit = 0; digit < 256; digit++) total += look.bins[digit];
            wanted *= total;
        }
        uint32_t digit = choose_digit(&look, wanted, target->goes_beyond, &running);
        look.prefix = look.prefix << 8 | digit;
    }
    struct cut cut = {look.prefix, 0, 0};
    take_ties(from, heat, target, wanted, running, &look, &cut);
    return cut;
}

/* --- candidates ------------------------------------------------------------------------------- */

/* List the tokens of a logit from `lowest` on; all of the row where they are too many. */
static struct candidates list_from(float lowest, const struct heat *heat,
                                   const struct scanned_row *row,
                                   const struct draw_memory *memory, double total) {
    struct candidates whole = {row->logits, NULL, row->count, 0.0};
    struct candidates listed = {memory->logits, memory->tokens, 0, 0.0};
    for (int64_t block = 0; block < row->num_blocks; block++) {
        if (!(row->block_largest[block] >= lowest)) continue;
        if (listed.count + BLOCK_TOKENS > LISTED_TOKENS) return whole;
        int64_t end = block_end(row, block);
        for (int64_t token = block * BLOCK_TOKENS; token < end; token++) {
            memory->logits[listed.count] = row->logits[token];
            memory->tokens[listed.count] = (int32_t)token;
            listed.count += row->logits[token] >= lowest;
        }
    }
    if (total > 0.0) {
        double rest = total - mass_of(heat, memory->logits, listed.count);
        listed.mass_elsewhere = rest > 0.0 ? rest : 0.0;
    }
    return listed;
}

/* The k likeliest tokens are among those that reach the k-th largest of the blocks' largest. */
static float lowest_of_likeliest(int64_t top_k, const struct heat *heat,
                                 const struct scanned_row *row) {
    if (top_k > row->num_blocks) return -__builtin_inff();
    struct candidates blocks = {row->block_largest, NULL, row->num_blocks, 0.0};
    struct target target = {COUNTS, (double)top_k, 0};
    return logit_of(cut_at(&blocks, heat, &everything, &target).key);
}

/* Tokens below (1 - top_p) / count of the whole mass have together less than what top_p leaves. */
static float lowest_of_nucleus(double top_p, double total, const struct heat *heat,
                               const struct scanned_row *row) {
    double least = (1.0 - top_p) * total / (double)row->count;
    int64_t bits;
    memcpy(&bits, &least, sizeof bits);
    int64_t power = (bits >> 52) - 1023; /* 2^power is not above it */
    double lowest = heat->highest + (double)power * 0.69314718055994530942 /
                                        heat->inverse_temperature;
    return (float)(lowest - 1e-6 * (1.0 + __builtin_fabs(lowest)));
}

/* A guess: where a sample of the row would be cut for a target a good deal further on. */
static float lowest_of_sample(const struct target *target, const struct heat *heat,
                              const struct scanned_row *row, const struct draw_memory *memory) {
    int64_t step = row->count / SAMPLED_TOKENS + 1, count = 0;
    for (int64_t token = 0; token < row->count; token += step)
        memory->logits[count++] = row->logits[token];
    struct candidates sample = {memory->logits, NULL, count, 0.0};
    struct target further = *target;
    if (target->measure == COUNTS)
        further.amount = 1.2 * target->amount / (double)step + 50.0;
    else
        further.amount = 0.25 + 0.75 * target->amount;
    return logit_of(cut_at(&sample, heat, &everything, &further).key);
}

/* List what the first cut, at `target`, chooses from: by a bound that always holds, then by a guess
 * that is checked, and else the whole row. */
static struct candidates list_candidates(const struct target *target, const struct heat *heat,
                                         const struct scanned_row *row,
                                         const struct draw_memory *memory) {
    int is_count = target->measure == COUNTS;
    double total = is_count ? 0.0 : mass_of(heat, row->logits, row->count);
    float lowest = is_count ? lowest_of_likeliest((int64_t)target->amount, heat, row)
                            : lowest_of_nucleus(target->amount, total, heat, row);
    struct candidates listed = list_from(lowest, heat, row, memory, total);
    if (listed.tokens != NULL) return listed;
    lowest = lowest_of_sample(target, heat, row, memory);
    listed = list_from(lowest, heat, row, memory, total);
    double left = (1.0 - target->amount) * total;
    if (is_count ? listed.count >= target->amount : listed.mass_elsewhere < left) return listed;
    return (struct candidates){row->logits, NULL, row->count, 0.0};
}

int32_t zse_draw_token(const struct zse_sampling *sampling, const struct scanned_row *row,
                       const struct draw_memory *memory) {
    struct heat heat = {row->largest, 1.0 / sampling->temperature, sampling->min_p};
    int cuts_count = sampling->top_k > 0 && sampling->top_k < row->count;
    int cuts_mass = sampling->top_p < 1.0;
    if (!cuts_count && !cuts_mass) return draw_in_order(&heat, row, sampling->draw, memory->sums);
    struct target count = {COUNTS, (double)sampling->top_k, 0};
    struct target mass = {MASSES, sampling->top_p, 0};
    struct candidates from = list_candidates(cuts_count ? &count : &mass, &heat, row, memory);
    struct cut kept = everything;
    if (cuts_count) kept = cut_at(&from, &heat, &kept, &count);
    if (cuts_mass) kept = cut_at(&from, &heat, &kept, &mass);
    struct target target = {MASSES, sampling->draw, 1};
    return cut_at(&from, &heat, &kept, &target).token;
}
