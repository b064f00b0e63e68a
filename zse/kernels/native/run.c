/* What the library tells Python of itself, and which kernel each kind of operation has. */
#include "pool.h"

const struct zse_kernel *const zse_kernels[ZSE_NUM_KINDS] = {
    [ZSE_OP_ROTARY] = &zse_rotary,
    [ZSE_OP_EMBED] = &zse_embed,
    [ZSE_OP_NORM] = &zse_norm_rows,
    [ZSE_OP_QUANTIZE] = &zse_quantize,
    [ZSE_OP_MULTIPLY] = &zse_multiply,
    [ZSE_OP_MULTIPLY_ADD] = &zse_multiply,
    [ZSE_OP_ROPE_STORE] = &zse_rope_store,
    [ZSE_OP_ATTEND] = &zse_attend,
    [ZSE_OP_ACTIVATE] = &zse_activate,
    [ZSE_OP_ADD] = &zse_add,
    [ZSE_OP_SAMPLE] = &zse_sample,
    [ZSE_OP_ADD_GATED] = &zse_add,
    [ZSE_OP_SCALE] = &zse_scale,
    [ZSE_OP_CAP] = &zse_cap,
    [ZSE_OP_GATE] = &zse_gate,
    [ZSE_OP_ROUTE] = &zse_route,
    [ZSE_OP_SORT] = &zse_sort,
    [ZSE_OP_GATHER] = &zse_gather,
    [ZSE_OP_EXPERTS] = &zse_multiply_experts,
    [ZSE_OP_COMBINE] = &zse_combine,
    [ZSE_OP_CONVOLVE] = &zse_convolve,
    [ZSE_OP_DELTA] = &zse_delta_rule,
    [ZSE_OP_PLACE] = &zse_add_rows,
    [ZSE_OP_TYPE] = &zse_add_rows,
    [ZSE_OP_POOL] = &zse_pool_rows,
    [ZSE_OP_LATENT_STORE] = &zse_latent_store,
    [ZSE_OP_ABSORB] = &zse_absorb,
    [ZSE_OP_EXPAND] = &zse_expand,
    [ZSE_OP_ADD_PARTS] = &zse_add_parts,
    [ZSE_OP_TELL] = &zse_tell,
    [ZSE_OP_ADAPT_DOWN] = &zse_adapt_down,
    [ZSE_OP_ADAPT_UP] = &zse_adapt_up,
    [ZSE_OP_OFFER] = &zse_offer,
    [ZSE_OP_MEET] = &zse_meet,
    [ZSE_OP_SUM_RANKS] = &zse_sum_ranks,
    [ZSE_OP_COLLECT] = &zse_collect,
};

int64_t zse_struct_sizes(int64_t *sizes, int64_t count)
{
    static const int64_t own[] = {
        sizeof(struct zse_matrix),    sizeof(struct zse_norm),      sizeof(struct zse_latent),
        sizeof(struct zse_attention), sizeof(struct zse_experts),   sizeof(struct zse_rope),
        sizeof(struct zse_cache),     sizeof(struct zse_rows),      sizeof(struct zse_delta),
        sizeof(struct zse_state),     sizeof(struct zse_low_rank),  sizeof(struct zse_adaptation),
        sizeof(struct zse_quantized), sizeof(struct zse_operation), sizeof(struct zse_sampling),
        sizeof(struct zse_ranks),     sizeof(struct zse_step),
    };
    const int64_t num_own = sizeof own / sizeof own[0];
    for (int64_t index = 0; index < num_own && index < count; index++) {
        sizes[index] = own[index];
    }
    return num_own;
}

const char *zse_instructions(void)
{
    return ZSE_INSTRUCTIONS;
}
