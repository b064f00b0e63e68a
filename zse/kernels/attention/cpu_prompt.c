/* Attention of a prompt's rows: tiles of queries against tiles of keys, with a running softmax. */
#include "attend.h"
#include "read_tile.h"

/* Consecutive tokens of a chunk with one group's heads; query = token * repeats + head. */
struct query_tile {
    int64_t first_token;
    int64_t num_tokens;
    float *queries; /* [queries, stride] */
    float *scores;  /* [queries, TILE_KEYS] */
    struct read_tile read;
    struct gathered gathered;
};

static struct query_tile lay_out_tile(const struct group *group, int64_t first_token,
                                      float *scratch) {
    int64_t tokens = tokens_a_piece(group->attention), left = group->chunk->num_rows - first_token;
    int64_t queries = tokens * group->repeats;
    struct query_tile tile = {.first_token = first_token,
                              .num_tokens = left < tokens ? left : tokens};
    tile.queries = scratch;
    tile.read.keys = tile.queries + queries * group->stride;
    tile.read.values = tile.read.keys + TILE_KEYS * group->stride;
    tile.scores = tile.read.values + TILE_KEYS * group->value_stride;
    tile.gathered.values = tile.scores + queries * TILE_KEYS;
    tile.gathered.stride = group->value_stride;
    tile.gathered.largest = tile.gathered.values + queries * group->value_stride;
    tile.gathered.total = tile.gathered.largest + queries;
    return tile;
}

/* Weigh the scores of a tile of keys, each query by what it sees of them. */
static void weigh_tile(const struct group *group, const struct query_tile *tile, int64_t first_key,
                       int64_t num_keys) {
    const struct zse_attention *attention = group->attention;
    for (int64_t token = 0; token < tile->num_tokens; token++) {
        int64_t position = group->chunk->start_position + tile->first_token + token;
        int64_t first = first_key_of(attention, position) - first_key;
        int64_t end = end_key_of(group, position) - first_key;
        first = first < 0 ? 0 : first;
        end = end < num_keys ? end : num_keys;
        for (int64_t head = 0; head < group->repeats; head++) {
            int64_t query = token * group->repeats + head;
            float *scores = tile->scores + query * TILE_KEYS;
            if (attention->softcap != 0.0f) cap_scores(scores, attention->softcap);
            weigh_scores(&tile->gathered, query, scores, first, end);
        }
    }
}

static void attend_tile(const struct group *group, const struct query_tile *whole,
                        int64_t first_key, int64_t num_keys) {
    struct query_tile tile = *whole;
    /* Tokens before the first key see none of these: the last tiles have fewer queries. */
    int64_t blind = first_key - (group->chunk->start_position + tile.first_token);
    if (blind > 0 && !group->attention->sees_all) {
        int64_t queries = blind * group->repeats;
        tile.first_token += blind;
        tile.num_tokens -= blind;
        tile.queries += queries * group->stride;
        tile.gathered.largest += queries;
        tile.gathered.total += queries;
        tile.gathered.values += queries * group->value_stride;
    }
    int64_t queries = tile.num_tokens * group->repeats;
    read_keys_and_values(group, &tile.read, 1, 1, first_key, num_keys);
    score_queries(group, tile.queries, queries, &tile.read, num_keys, tile.scores);
    weigh_tile(group, &tile, first_key, num_keys);
    add_values(group, queries, &tile.read, num_keys, tile.scores, &tile.gathered);
}

void zse_attend_prompt(const struct zse_operation *operation, const struct zse_step *step,
                       const struct zse_rows *chunk, int64_t piece, float *scratch) {
    const struct zse_attention *attention = operation->attention;
    int64_t tokens = tokens_a_piece(attention), kv_head = piece % attention->num_kv_heads;
    int64_t tiles = (chunk->num_rows + tokens - 1) / tokens;
    /* The last tokens see most: what takes longest is begun first. */
    int64_t first_token = (tiles - 1 - piece / attention->num_kv_heads) * tokens;
    struct group group = group_of(operation, step, chunk, kv_head);
    struct query_tile tile = lay_out_tile(&group, first_token, scratch);
    gather_nothing(&tile.gathered, tile.num_tokens * group.repeats);
    for (int64_t query = 0; query < tile.num_tokens * group.repeats; query++)
        copy_query(&group, first_token + query / group.repeats, query % group.repeats,
                   tile.queries + query * group.stride);
    int64_t first_position = chunk->start_position + first_token;
    int64_t end_key = end_key_of(&group, first_position + tile.num_tokens - 1);
    for (int64_t key = first_key_of(attention, first_position); key < end_key; key += TILE_KEYS)
        attend_tile(&group, &tile, key, end_key - key < TILE_KEYS ? end_key - key : TILE_KEYS);
    for (int64_t query = 0; query < tile.num_tokens * group.repeats; query++) {
        int64_t head = query % group.repeats;
        finish_query(tile.gathered.values + query * group.value_stride,
                     tile.gathered.largest[query], tile.gathered.total[query],
                     sink_of(&group, head), group.value_dim,
                     group.mixed + (first_token + query / group.repeats) * group.mixed_stride +
                         head * group.value_dim);
    }
}
