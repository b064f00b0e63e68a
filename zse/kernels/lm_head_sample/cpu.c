/* One token for each wanted row. In order: log-probabilities of the model's own distribution, then
 * penalties and biases, bans and the mask on the logits, then the choice. */
#include "draw.h"

/* Below this temperature the likeliest token is taken. */
#define GREEDY_BELOW 1e-5
#define MAX_BLOCKS (ZSE_MAX_VOCABULARY / BLOCK_TOKENS)

/* A piece's memory, in a worker's scratch. */
struct row_memory {
    float *entry_logits;  /* [ZSE_KEPT_ENTRIES]: as they were before they were adjusted */
    float *block_largest; /* [MAX_BLOCKS] */
    struct draw_memory draw;
};

static struct row_memory lay_out(void *scratch) {
    struct row_memory memory;
    memory.draw.sums = scratch;
    memory.draw.logits = (float *)(memory.draw.sums + MAX_BLOCKS);
    memory.draw.tokens = (int32_t *)(memory.draw.logits + LISTED_TOKENS);
    memory.entry_logits = (float *)(memory.draw.tokens + LISTED_TOKENS);
    memory.block_largest = memory.entry_logits + ZSE_KEPT_ENTRIES;
    return memory;
}
_Static_assert(MAX_BLOCKS * 12 + LISTED_TOKENS * 8 + ZSE_KEPT_ENTRIES * 4 <= ZSE_SCRATCH_BYTES,
               "sampling needs more scratch");

/* --- log-probabilities ------------------------------------------------------------------------ */

/* Natural logarithm of a number from 1 on. */
static double logarithm(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t power = (bits >> 52) - 1023;
    bits -= power << 52;
    double part; /* in [1, 2) */
    memcpy(&part, &bits, sizeof part);
    double s = (part - 1.5) / (part + 1.5), square = s * s, sum = 0.0;
    for (int odd = 23; odd >= 1; odd -= 2) sum = sum * square + 1.0 / odd;
    return 2.0 * s * sum + 0.40546510810816438198 + (double)power * 0.69314718055994530942;
}

/* The logarithm of the sum of exponentials of a row. */
static double log_of_sum(const struct scanned_row *row) {
    double sum = 0.0;
    for (int64_t block = 0; block < row->num_blocks; block++) {
        int64_t end = block_end(row, block);
        vfloat sums = {0};
        for (int64_t i = block * BLOCK_TOKENS; i < end; i += VECTOR_LANES) {
            vfloat x = vload_some(row->logits + i, end - i) - row->largest;
            vfloat terms = vexp(x);
            terms = (vfloat)((vint)terms & (x == x)); /* what is no number counts nothing */
            if (end - i < VECTOR_LANES)
                for (int64_t lane = end - i; lane < VECTOR_LANES; lane++) terms[lane] = 0.0f;
            sums += terms;
        }
        sum += (double)vsum(sums);
    }
    return (double)row->largest + logarithm(sum);
}

/* Put a token behind those of the list that are as likely; what falls off its end is gone. */
static void insert(int32_t *tokens, float *logits, int64_t room, int64_t *count, int32_t token,
                   float logit) {
    int64_t place = *count < room ? (*count)++ : room - 1;
    for (; place > 0 && logits[place - 1] < logit; place--) {
        tokens[place] = tokens[place - 1];
        logits[place] = logits[place - 1];
    }
    tokens[place] = token;
    logits[place] = logit;
}

/* List the likeliest tokens with their log-probabilities, the lowest identity first on a tie. */
static void list_alternatives(const struct scanned_row *row, double log_sum,
                              struct zse_sampling *sampling) {
    int64_t room = sampling->num_logprobs < row->count ? sampling->num_logprobs : row->count;
    int64_t count = 0;
    float *logits = sampling->top_logprobs;
    for (int64_t block = 0; room > 0 && block < row->num_blocks; block++) {
        if (count == room && !(row->block_largest[block] > logits[room - 1])) continue;
        int64_t end = block_end(row, block);
        for (int64_t token = block * BLOCK_TOKENS; token < end; token++) {
            float logit = row->logits[token];
            if (logit != logit) logit = -__builtin_inff();
            if (count < room || logit > logits[room - 1])
                insert(sampling->top_tokens, logits, room, &count, (int32_t)token, logit);
        }
    }
    for (int64_t i = 0; i < room; i++) logits[i] = (float)((double)logits[i] - log_sum);
}

/* --- adjustments ------------------------------------------------------------------------------ */

static inline int is_token(int32_t token, int64_t vocabulary) {
    return token >= 0 && token < vocabulary;
}

static void apply_entries(const struct zse_sampling *sampling, float *logits, int64_t vocabulary,
                          float *before) {
    for (int64_t i = 0; i < sampling->num_entries; i++) {
        int32_t token = sampling->entry_tokens[i];
        if (!is_token(token, vocabulary)) continue;
        float logit = logits[token], penalty = sampling->entry_penalties[i];
        if (i < ZSE_KEPT_ENTRIES) before[i] = logit;
        logits[token] = (logit > 0.0f ? logit / penalty : logit * penalty) +
                        sampling->entry_additions[i];
    }
}

static void apply_bans(const struct zse_sampling *sampling, float *logits, int64_t vocabulary) {
    for (int32_t i = 0; i < sampling->num_banned; i++)
        if (is_token(sampling->banned_tokens[i], vocabulary))
            logits[sampling->banned_tokens[i]] = -__builtin_inff();
}

static void apply_mask(const uint32_t *mask, float *logits, int64_t vocabulary) {
    for (int64_t first = 0; first < vocabulary; first += 32, mask++) {
        if (*mask == ~0u) continue;
        int64_t end = first + 32 < vocabulary ? first + 32 : vocabulary;
        for (int64_t token = first; token < end; token++)
            if (!(*mask >> (token - first) & 1)) logits[token] = -__builtin_inff();
    }
}

/* What a token's logit was before its entry changed it. */
static float own_logit(const struct zse_sampling *sampling, const float *logits, int32_t token,
                       const float *before) {
    float logit = logits[token];
    for (int64_t i = 0; i < sampling->num_entries; i++) {
        if (sampling->entry_tokens[i] != token) continue;
        if (i < ZSE_KEPT_ENTRIES) return before[i];
        float penalized = logit - sampling->entry_additions[i];
        float penalty = sampling->entry_penalties[i];
        return penalized > 0.0f ? penalized * penalty : penalized / penalty;
    }
    return logit;
}

/* --- the choice ------------------------------------------------------------------------------- */

static int32_t choose_token(const struct zse_sampling *sampling, float *logits, int64_t vocabulary,
                            const struct row_memory *memory) {
    apply_entries(sampling, logits, vocabulary, memory->entry_logits);
    apply_bans(sampling, logits, vocabulary);
    if (sampling->mask != NULL) apply_mask(sampling->mask, logits, vocabulary);
    struct scanned_row row = scan_row(logits, vocabulary, memory->block_largest);
    /* Nothing may come, or one token is beyond all numbers: there is nothing to draw from. */
    if (sampling->temperature < GREEDY_BELOW || row.largest - row.largest != 0.0f)
        return row.likeliest;
    return zse_draw_token(sampling, &row, &memory->draw);
}

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)operation, (void)num_threads;
    return step->sampling == NULL ? 0 : step->num_wanted;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    struct zse_sampling *sampling = step->sampling + piece;
    struct row_memory memory = lay_out(worker->scratch);
    int64_t vocabulary = operation->width;
    float *logits = step->registers[ZSE_LOGITS] + piece * vocabulary;
    double log_sum = 0.0;
    if (sampling->num_logprobs >= 0) {
        struct scanned_row row = scan_row(logits, vocabulary, memory.block_largest);
        log_sum = log_of_sum(&row);
        list_alternatives(&row, log_sum, sampling);
    }
    int32_t known = sampling->known_token;
    if (is_token(known, vocabulary)) {
        sampling->token = known;
        sampling->logprob = (float)((double)logits[known] - log_sum);
        return;
    }
    sampling->token = choose_token(sampling, logits, vocabulary, &memory);
    float own = own_logit(sampling, logits, sampling->token, memory.entry_logits);
    sampling->logprob = (float)((double)own - log_sum);
}

const struct zse_kernel zse_sample = {count_pieces, run_piece};
