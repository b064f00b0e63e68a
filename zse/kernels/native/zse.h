/* What Python and the processor's kernels agree on: a step of a model as one call.
 *
 * A model is recorded once as a list of operations over registers; a step brings the rows. Threads
 * walk the list together: the work of an operation falls into pieces that are claimed one by one,
 * and the next operation begins when all pieces of the one before are done. A piece writes what no
 * other piece writes and computes it in one order, so results have the same bits with any number of
 * threads.
 *
 * Everything is little-endian. Weights are read where they lie in the mapped file (SPEC.md); all
 * pointers are borrowed and outlive the call. Python's side of these structures is `structs.py`.
 */
#ifndef ZSE_H
#define ZSE_H

#include <stdint.h>

#define ZSE_API __attribute__((visibility("default")))
/* Columns that one scale covers where a matrix has no groups of its own. */
#define ZSE_ACTIVATION_GROUP 128
/* Parts into which the keys of one row are split at most, so that threads share a long sequence. */
#define ZSE_ATTENTION_PARTS 32
/* What attention has room for: columns of a head, and heads that share one of keys and values. */
#define ZSE_MAX_HEAD_DIM 576
#define ZSE_MAX_HEADS_A_GROUP 128
/* Tokens that the convolution before linear attention has room for. */
#define ZSE_MAX_TAPS 8
/* Tokens that sampling has room for. */
#define ZSE_MAX_VOCABULARY (1 << 20)
/* Adjusted tokens of a row of logits whose own logits are kept; of more, they are computed back. */
#define ZSE_KEPT_ENTRIES (1 << 16)

/* ZSE_NL4_PAIRS has groups of 16, which kernels take by twos: two scales for 32 columns. */
enum zse_scheme {
    ZSE_FP32,
    ZSE_FP16,
    ZSE_BF16,
    ZSE_INT8,
    ZSE_INT4,
    ZSE_NF4,
    ZSE_MXFP4,
    ZSE_NL4,
    ZSE_NL4_PAIRS,
    ZSE_INT3,
    ZSE_INT2,
};
enum zse_cache_dtype {
    ZSE_CACHE_FP32,
    ZSE_CACHE_FP16,
    ZSE_CACHE_BF16,
    ZSE_CACHE_INT8,
    ZSE_CACHE_INT4,
};
/* ZSE_SWIGLU_OAI is a gate and what it multiplies at once: both are bounded first. */
enum zse_activation { ZSE_SILU, ZSE_GELU, ZSE_GELU_TANH, ZSE_RELU2, ZSE_SWIGLU_OAI, ZSE_TANH };
/* Which rows of a whole text make its vector. */
enum zse_pooling { ZSE_POOL_MEAN, ZSE_POOL_FIRST, ZSE_POOL_LAST };
/* How a router's logits become scores: ZSE_SOFTMAX_CHOSEN takes the softmax of the chosen alone. */
enum zse_scoring { ZSE_SOFTMAX, ZSE_SOFTMAX_CHOSEN, ZSE_SIGMOID };
/* The rows that an operation works on: the step's, those whose logits are wanted, or those of the
 * chosen experts, expert by expert. */
enum zse_row_set { ZSE_STEP_ROWS, ZSE_WANTED_ROWS, ZSE_CHOSEN_ROWS };

/* A matrix [rows, columns] as the file has it, and the bias that is added to its product. */
struct zse_matrix {
    const void *data;      /* plain numbers, int8, or codes of four bits and fewer */
    const void *scales;    /* INT8: float32 [rows]; INT4, INT3, INT2: {fp16 scale, fp16 -zero*scale}, NF4: fp16
                              absmax, MXFP4: uint8 exponent, NL4: uint8 scale, NL4_PAIRS: two of
                              them, all [rows, columns / group]; NULL for plain numbers */
    const float *bias;     /* [rows], or NULL */
    int64_t rows;
    int64_t columns;
    int32_t scheme;        /* enum zse_scheme */
    int32_t group;         /* columns that share a scale: 128, 64 or 32; 0 without */
};

/* RMSNorm, or LayerNorm, which subtracts the mean first. */
struct zse_norm {
    const float *weight;
    const float *bias;     /* or NULL */
    float epsilon;
    int32_t subtracts_mean;
};

/* What heads are made of where their keys and values are not kept. A row of QKV has queries or their
 * latent, then the latent of keys and values, then one key that turns; the last two are kept. */
struct zse_latent {
    int32_t rank;          /* of the latent: what is kept is head_dim wide, and begins with it */
    int32_t key_dim;       /* columns of a head's query that do not turn; those that do follow */
    int32_t value_dim;     /* of a head's value */
    int32_t query_columns; /* of QKV before what is kept */
    const struct zse_norm *query_norm; /* of the queries' latent; NULL: QKV has queries */
    const struct zse_norm *norm;       /* of the latent */
    const struct zse_matrix *expansion; /* [heads * (key_dim + value_dim), rank], plain numbers: of
                                           each head keys, then values */
};

/* A row of QKV has queries, then their gates, then keys, then values, as far as a layer has them. */
struct zse_attention {
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t rotary_dim;    /* columns of a head that turn, the first ones; 0: none */
    int32_t window;        /* keys a query sees, its own included; 0: all before it */
    float scale;           /* multiplies scores */
    float softcap;         /* bounds scores; 0: no bound */
    int32_t rotary;        /* register of its cosines and sines */
    const struct zse_norm *q_norm;   /* of each head, or NULL */
    const struct zse_norm *k_norm;
    const float *sinks;    /* one logit a head, or NULL */
    float value_epsilon;   /* of the RMSNorm without weight of each value; 0: none */
    int32_t norms_together;  /* 1: the norms are of all heads as one vector */
    int32_t is_gated;      /* 1: sigmoids of the gates multiply what attention returns */
    int32_t values_are_keys; /* 1: values are the keys before their norm and rotation */
    int32_t shares_keys;   /* 1: keys and values are those of the layer that ATTEND names */
    int32_t sees_all;      /* 1: chunks are whole texts, whose rows see each other's keys and values
                              where QKV has them, all three kinds; nothing is stored */
    const struct zse_latent *latent; /* or NULL; there is one KV head then, its values in its keys */
    const float *key_factors; /* [num_kv_heads, head_dim]: keys are kept divided by them, and queries
                                 multiplied; or NULL */
    int32_t turns_keys;    /* 1: runs of 32 columns of keys and queries are turned (kept.h) */
};

/* Which experts a row goes through: those of the highest scores, the first among equals. */
struct zse_experts {
    int32_t num_experts;
    int32_t experts_per_token;
    int32_t scoring;       /* enum zse_scoring */
    int32_t normalizes;    /* 1: weights are scaled to a sum of one */
    float weight_scale;
    int32_t num_groups;    /* of as many experts each, of which some are chosen first; 1: no groups */
    int32_t groups_per_token;
    int32_t scores_in_group; /* a group's score is the sum of so many of its best */
    const float *selection_bias; /* [num_experts], added to scores for choosing alone; or NULL */
    const float *expert_scales;  /* [num_experts], multiply weights; or NULL */
};

/* Linear attention. A row of QKV has queries, keys, values, then the gates of what it returns. */
struct zse_delta {
    int32_t num_key_heads;
    int32_t num_value_heads; /* consecutive ones share a query and a key */
    int32_t key_dim;
    int32_t value_dim;
    int32_t convolution_width;
    int32_t reserved;
    const float *convolution; /* [queries, keys and values, convolution_width], the newest last */
    const float *decay;    /* [num_value_heads]: logarithms of rates */
    const float *step_bias;/* [num_value_heads], added to decays */
    const struct zse_norm *norm; /* of each value head */
};

/* The states of one layer, a slot a sequence. */
struct zse_state {
    float *rings;          /* [slots, convolution_width, channels]: the last tokens' queries, keys and
                              values before the convolution, position p in line p % width */
    float *matrices;       /* [slots, num_value_heads, key_dim, value_dim] */
};

/* One of a row's experts. */
struct zse_choice {
    int32_t expert;
    int32_t place;         /* of this row among the rows of chosen experts */
    float weight;
};

/* Rows of chosen experts first .. end, which go through one of them. */
struct zse_run {
    int32_t expert;
    int32_t first;
    int32_t end;
};

/* How positions turn heads: column i with column i + rotary_dim / 2. */
struct zse_rope {
    const float *frequencies; /* [rotary_dim / 2], radians a token */
    int32_t rotary_dim;
    float factor;          /* multiplies cosines and sines */
};

/* One layer's keys and values: [num_blocks, block_size, 2 * kv_heads, head_dim], keys first. Values
 * that begin with a latent are not kept twice. INT8 heads are followed, in the same block, by fp16
 * scales, [block_size, 2 * kv_heads, head_dim / 32]. */
struct zse_cache {
    char *data;
    int64_t block_bytes;   /* from one block to the next */
    int32_t block_size;    /* tokens */
    int32_t dtype;         /* enum zse_cache_dtype */
    int32_t group;         /* of layers that keep the same tokens of a sequence: its slots, its blocks */
    int32_t reserved;
};

/* Consecutive rows of one sequence that attend together: a chunk of a prompt, or one token. */
struct zse_rows {
    int32_t first_row;
    int32_t num_rows;
    int32_t start_position;
    uint16_t state_slot;   /* where it leaves its sequence's state */
    uint16_t state_from;   /* which state it goes on with; at position 0 with an empty one */
    const int32_t *blocks; /* the sequence's block table */
};

/* What an adapter adds to rows of a product: scale * up @ (down @ input). */
struct zse_low_rank {
    const float *down;     /* [rank, columns of the matrix] */
    const float *up;       /* [rank, rows]: turned, so that neighbours lie side by side */
    int64_t first_row;     /* of the matrix */
    int64_t rows;
    int32_t rank;
    float scale;
};

/* All that an adapter adds to one matrix; an adapter is an array of these, one a matrix: of a stack
 * one for each of its matrices. */
struct zse_adaptation {
    const struct zse_low_rank *parts;
    int64_t num_parts;
};

enum zse_register {        /* float32 [rows, width] */
    ZSE_RESIDUAL,          /* the residual stream, [rows, hidden] */
    ZSE_QKV,               /* queries, keys, values side by side; queries are rotated in place */
    ZSE_MIXED,             /* what attention returns, [rows, heads * head_dim] */
    ZSE_JOINED,            /* gate and up side by side, or up */
    ZSE_HIDDEN,            /* what the MLP's second matrix reads */
    ZSE_ADDED,             /* a product before its post-norm, [rows, hidden] */
    ZSE_NORMED,            /* normed rows, [rows, hidden]; of the wanted rows behind the last layer */
    ZSE_LOGITS,            /* [wanted, vocab]; sampling adjusts them in place */
    ZSE_ROTARY,            /* [rows, rotary_dim]: cosines, then sines; of the first kind of rotation */
    ZSE_ROTARY_OTHER,      /* of the second, where layers differ */
    ZSE_PARTIAL,           /* [num_chunks, ZSE_ATTENTION_PARTS, heads, value columns + 2], read and written
                              for chunks of one row alone: attention over parts of their keys */
    ZSE_ARRIVED,           /* int32 [num_chunks, kv_heads]: parts that are there; zero when allocated,
                              and again behind each ATTEND. Both are sized for the largest layer */
    ZSE_SHARED,            /* what the expert of every token returns, [rows, hidden] */
    ZSE_SHARED_GATE,       /* [rows, 1]: its gate */
    ZSE_MIXTURE,           /* what the chosen experts return together, [rows, hidden] */
    ZSE_ROUTER,            /* logits of a router, [rows, experts] */
    ZSE_CHOICES,           /* struct zse_choice [rows, experts_per_token] */
    ZSE_RUNS,              /* struct zse_run [rows * experts_per_token + 1]: the first counts those
                              behind it as its end */
    ZSE_CHOSEN,            /* [rows * experts_per_token, hidden]: what the chosen experts read, then
                              what they return */
    ZSE_CHOSEN_JOINED,     /* as JOINED and HIDDEN, [rows * experts_per_token, ...] */
    ZSE_CHOSEN_HIDDEN,
    ZSE_DELTA_GATES,       /* steps, then decays, of linear attention's value heads */
    ZSE_QUERY_LATENT,      /* what queries are made of, where they have a latent of their own */
    ZSE_QUERIES,           /* [rows, heads * (key_dim + turning)], made of it */
    ZSE_WIDE_QUERIES,      /* [rows, heads * head_dim]: queries of what is kept of latent attention */
    ZSE_WIDE_MIXED,        /* [rows, heads * rank]: the sums of latents that it returns */
    ZSE_TOLD,              /* what each layer is told of a token besides the stream, side by side */
    ZSE_LOW_RANK,          /* what adapters make of a matrix's inputs, one part's behind the other's */
    ZSE_OWN_LOGITS,        /* [wanted, tokens of this rank], where ranks share the vocabulary */
    ZSE_NUM_REGISTERS
};

/* Activations as int8: what matrices of whole numbers read. Rows are `stride` columns apart. */
struct zse_quantized {
    int8_t *codes;         /* [rows, stride], 64-byte aligned rows, zero beyond the columns */
    float *scales;         /* [rows, stride / 32]: one a group, the largest value has code 127 */
    float *sums;           /* [rows, stride / 32]: scale * sum of the group's codes */
    int64_t stride;        /* a multiple of 128 */
};

enum zse_kind {
    ZSE_OP_ROTARY,         /* output = cosines and sines of the rows' positions by `rope` */
    ZSE_OP_EMBED,          /* output = scale * rows of `matrix` that the tokens name */
    ZSE_OP_NORM,           /* output = scale * norm(input), and quantized if `quantizes` */
    ZSE_OP_QUANTIZE,       /* input, quantized in groups of `quantizes` columns */
    ZSE_OP_MULTIPLY,       /* output = input @ matrix^T + bias; of the quantized input if `quantizes` */
    ZSE_OP_MULTIPLY_ADD,   /* output += scale * (input @ matrix^T + bias) */
    ZSE_OP_ROPE_STORE,     /* QKV: normalize heads, rotate, store keys and values of `layer` */
    ZSE_OP_ATTEND,         /* output from the input's queries and the cache of `layer` */
    ZSE_OP_ACTIVATE,       /* output = activation(gate) * up, and quantized if `quantizes` */
    ZSE_OP_ADD,            /* output += scale * input */
    ZSE_OP_SAMPLE,         /* a token for each wanted row, from LOGITS */
    ZSE_OP_ADD_GATED,      /* output += sigmoid(SHARED_GATE) * input, gates one a row */
    ZSE_OP_SCALE,          /* output *= scale */
    ZSE_OP_CAP,            /* output = scale * tanh(output / scale) */
    ZSE_OP_GATE,           /* output *= sigmoid(QKV's gates), and quantized if `quantizes` */
    ZSE_OP_ROUTE,          /* CHOICES from ROUTER */
    ZSE_OP_SORT,           /* RUNS, and the places of CHOICES */
    ZSE_OP_GATHER,         /* output, or the quantized rows of chosen experts, = input's rows */
    ZSE_OP_EXPERTS,        /* output = input @ its expert's part of the matrix^T + bias */
    ZSE_OP_COMBINE,        /* output = the sum of the input's rows at the row's places, weighted */
    ZSE_OP_CONVOLVE,       /* output = SiLU of its convolution over time, by `delta`; gates stay */
    ZSE_OP_DELTA,          /* MIXED from QKV and DELTA_GATES, by the states of `layer` */
    ZSE_OP_PLACE,          /* output += rows of `matrix` that the positions name */
    ZSE_OP_TYPE,           /* output += rows of `matrix` that the types name */
    ZSE_OP_POOL,           /* output [num_chunks, width] = the mean of a chunk's rows, or one of them */
    ZSE_OP_LATENT_STORE,   /* QKV: normalize the latent, rotate the key, store both for `layer`;
                              output = the queries' latent, normalized, if they have one */
    ZSE_OP_ABSORB,         /* output = the input's queries through their heads' keys, and rotated */
    ZSE_OP_EXPAND,         /* output = the input's sums of latents through their heads' values */
    ZSE_OP_ADD_PARTS,      /* output += norm of each `width` columns of the input, a row of which is
                              as long as `matrix` has rows */
    ZSE_OP_TELL,           /* output *= the `width` columns of TOLD that are `layer`'s, and quantized
                              if `quantizes`; a row of TOLD is as long as `matrix` has rows */
    ZSE_OP_ADAPT_DOWN,     /* output, a row of which is `width` wide, = the input through the first
                              matrices of its rows' adapters; `layer` is the number of `matrix`. Of
                              chosen rows it is that of the first matrix of a stack, and the input is
                              CHOSEN_HIDDEN or the step's rows */
    ZSE_OP_ADAPT_UP,       /* output += scale * the input through their second ones */
    ZSE_OP_OFFER,          /* a slot of this rank = the input, `width` columns */
    ZSE_OP_MEET,           /* wait until every rank has come here */
    ZSE_OP_SUM_RANKS,      /* output = the sum of what the ranks offered, in their order */
    ZSE_OP_COLLECT,        /* output [wanted, tokens] = what the ranks offered, side by side, `width`
                              columns each; the last has what is left */
    ZSE_NUM_KINDS
};

struct zse_operation {
    int32_t kind;          /* enum zse_kind */
    int32_t layer;
    int32_t input;         /* enum zse_register */
    int32_t output;
    int32_t row_set;       /* enum zse_row_set; NORM gathers the wanted rows */
    int32_t quantizes;     /* columns of a group of int8 activations that are written, or that a
                              product reads; 0: float32 alone */
    int32_t activation;    /* enum zse_activation */
    int32_t is_gated;
    float scale;
    float limit;           /* of ZSE_SWIGLU_OAI: bounds gate and up */
    int32_t width;         /* columns of the input where no matrix says it: of gate and up together */
    int32_t pooling;       /* enum zse_pooling */
    const struct zse_matrix *matrix;
    const struct zse_norm *norm;
    const struct zse_attention *attention;
    const struct zse_rope *rope;
    const struct zse_experts *experts;
    const struct zse_delta *delta;
};

/* How one token is chosen; see zse/kernels/lm_head_sample. */
struct zse_sampling {
    const int32_t *entry_tokens;     /* tokens whose logits are adjusted, each once (`entries.py`):
                                        (logit > 0 ? logit / penalty : logit * penalty) + addition */
    const float *entry_penalties;
    const float *entry_additions;
    const int32_t *banned_tokens;    /* never chosen */
    const uint32_t *mask;            /* a bit for each token that may come, or NULL */
    double temperature;              /* below 1e-5: greedy, the lowest id on a tie */
    double top_p;
    double min_p;
    double draw;                     /* in [0, 1) */
    int32_t num_entries;
    int32_t num_banned;
    int32_t top_k;                   /* 0 keeps all */
    int32_t known_token;             /* chosen whatever the logits are; -1: none */
    int32_t num_logprobs;            /* alternatives to report, at most the vocabulary; -1: no
                                        log-probability at all */
    /* Answers. */
    int32_t token;
    float logprob;
    int32_t reserved;
    int32_t *top_tokens;             /* [num_logprobs], likeliest first */
    float *top_logprobs;
};

/* Who waits for a number to be reached, and who brings it; a cache line, zeros at first. */
struct zse_bell {
    uint64_t count;
    uint32_t num_asleep;
    uint32_t reserved[13];
};

/* The processes that compute a step together, and this one among them. */
struct zse_ranks {
    char *slots;           /* shared: [2, num_ranks, slot_bytes] */
    struct zse_bell *bells;/* shared: one a rank, the number of meetings that it has come to */
    const int32_t *broken; /* shared: not 0 when a rank has failed */
    int64_t slot_bytes;
    int64_t spin_nanoseconds;
    int64_t timeout_nanoseconds;
    int64_t num_tokens;    /* of the vocabulary */
    uint64_t num_meetings; /* of this process */
    int32_t rank;
    int32_t num_ranks;
    int32_t has_failed;    /* another rank did not come; nobody is waited for any more */
    int32_t reserved;
};

struct zse_step {
    int64_t rows;
    int64_t single_rows;   /* rows before this one: their bits depend on no other row */
    int64_t num_wanted;
    int64_t num_chunks;
    const int32_t *tokens;         /* [rows] */
    const int32_t *positions;      /* [rows] */
    const int32_t *slots;          /* [groups, rows]: block * block_size + offset of a row's key and value */
    const int32_t *wanted;         /* [num_wanted]: rows whose logits are asked for */
    const struct zse_rows *chunks; /* [groups, num_chunks]: alike but for their blocks */
    struct zse_sampling *sampling; /* [num_wanted], or NULL where nothing is sampled */
    const struct zse_cache *caches;/* one a layer */
    const struct zse_state *states;/* one a layer */
    const int32_t *types;          /* [rows], or NULL where no operation reads them */
    const struct zse_adaptation *const *adapters; /* [rows]: a row's adapter, or NULL; NULL where no
                                      operation reads them */
    float *registers[ZSE_NUM_REGISTERS];
    struct zse_quantized quantized;/* of the input that was quantized last */
    struct zse_quantized chosen;   /* the same of rows of chosen experts */
    struct zse_ranks *ranks;       /* or NULL where no operation reads them */
};

/* Where a cache's layers keep the rows of a step. */
static inline const int32_t *slots_of(const struct zse_step *step, const struct zse_cache *cache) {
    return step->slots + cache->group * step->rows;
}

/* A thread's own memory while it works on a piece. */
struct zse_worker {
    void *scratch;         /* 64-byte aligned */
    int64_t scratch_bytes; /* ZSE_SCRATCH_BYTES */
    int32_t thread;
    int32_t num_threads;
};
#define ZSE_SCRATCH_BYTES (1 << 20)

/* What an operation gives the pool: how many pieces a step has of it, and one piece's work. */
struct zse_kernel {
    int64_t (*count_pieces)(const struct zse_operation *, const struct zse_step *, int num_threads);
    void (*run_piece)(const struct zse_operation *, const struct zse_step *, int64_t piece,
                      struct zse_worker *);
};
extern const struct zse_kernel zse_rotary, zse_embed, zse_add_rows, zse_pool_rows, zse_norm_rows, zse_quantize, zse_multiply,
    zse_rope_store, zse_attend, zse_activate, zse_add, zse_sample, zse_scale, zse_cap, zse_gate,
    zse_route, zse_sort, zse_gather, zse_multiply_experts, zse_combine, zse_convolve, zse_delta_rule,
    zse_latent_store, zse_absorb, zse_expand, zse_add_parts, zse_tell, zse_adapt_down, zse_adapt_up,
    zse_offer, zse_meet, zse_sum_ranks, zse_collect;

/* Quantize columns first .. first + count of a row, whole groups; what NORM and ACTIVATE call. */
void zse_quantize_columns(const float *row, int64_t row_index, int64_t first, int64_t count,
                          int32_t group, const struct zse_quantized *output);

/* --- what the library exports ---------------------------------------------------------------- */

struct zse_pool;
/* Start threads; the one that runs steps is one of them. NULL where none can be started. */
ZSE_API struct zse_pool *zse_pool_start(int32_t num_threads, int64_t spin_nanoseconds);
ZSE_API void zse_pool_stop(struct zse_pool *);
/* Run operations in order and return when the last is done. One caller at a time. */
ZSE_API void zse_run(struct zse_pool *, const struct zse_operation *, int64_t num_operations,
                     const struct zse_step *);
/* Sizes of the structures that Python fills, matrix to step, in the order of their declaration. */
ZSE_API int64_t zse_struct_sizes(int64_t *sizes, int64_t count);
/* Which instructions this library was compiled for, "avx2"; whether this processor runs them,
 * where its flags may promise what its host forbids. */
ZSE_API const char *zse_instructions(void);
ZSE_API int32_t zse_probe(void);
/* Bring a bell to a number. Wait until it is there: 1; 0 when that takes too long, -1 when `broken`
 * (or NULL) is not 0. Who waits spins first. */
ZSE_API void zse_bell_ring(struct zse_bell *, uint64_t count);
ZSE_API int32_t zse_bell_wait(struct zse_bell *, uint64_t count, int64_t spin_nanoseconds,
                              int64_t timeout_nanoseconds, const int32_t *broken);
/* Copy evenly spaced pieces to where they lie one behind the other. */
ZSE_API void zse_copy_pieces(const char *source, int64_t stride_bytes, int64_t piece_bytes,
                             int64_t num_pieces, char *output);
/* float32 from fp32, fp16 or bf16 numbers; for norms and biases when a model is opened. */
ZSE_API void zse_widen(const void *numbers, int32_t scheme, int64_t count, float *output);

/* Rows of a stream as they cross a wire, and back; ../wire says how. `input` has all of them. */
ZSE_API void zse_write_rows(int32_t codec, const float *rows, int64_t count, int64_t width,
                            uint8_t *output);
ZSE_API void zse_read_rows(int32_t codec, const uint8_t *input, int64_t count, int64_t width,
                           float *rows);

#endif
