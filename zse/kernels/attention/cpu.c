/* Attention over a paged cache: single rows in parts of their keys, prompts in tiles of queries. */
#include "../native/paged.h"
#include "pieces.h"
#include "softmax.h"

/* A group of heads, which share keys and values, and where its numbers are. */
struct group {
    const struct zse_attention *attention;
    const struct zse_rows *chunk;
    struct paged_head keys;
    struct paged_head values;
    const float *queries;    /* of the chunk's first row and the group's first head */
    float *mixed;
    int64_t queries_stride;  /* from row to row */
    int64_t mixed_stride;
    int64_t first_head;
    int64_t repeats;         /* heads of the group */
    int64_t stride;          /* head_dim in whole panels */
};

static struct group group_of(const struct zse_operation *operation, const struct zse_step *step,
                             const struct zse_rows *chunk, int64_t kv_head) {
    const struct zse_attention *attention = operation->attention;
    const struct zse_cache *cache = step->caches + operation->layer;
    int64_t head_dim = attention->head_dim, num_kv_heads = attention->num_kv_heads;
    int64_t repeats = attention->num_heads / num_kv_heads, slots = 2 * num_kv_heads;
    struct paged_head keys = {cache, chunk->blocks, slots, kv_head, attention->head_dim};
    struct paged_head values = keys;
    values.slot += num_kv_heads;
    struct group group = {
        .attention = attention,
        .chunk = chunk,
        .keys = keys,
        .values = values,
        .queries_stride = (attention->num_heads + slots) * head_dim,
        .mixed_stride = attention->num_heads * head_dim,
        .first_head = kv_head * repeats,
        .repeats = repeats,
        .stride = (head_dim + PANEL_COLUMNS - 1) / PANEL_COLUMNS * PANEL_COLUMNS,
    };
    int64_t first_column = group.first_head * head_dim;
    group.queries = step->registers[ZSE_QKV] + chunk->first_row * group.queries_stride +
                    first_column;
    group.mixed = step->registers[ZSE_MIXED] + chunk->first_row * group.mixed_stride +
                  first_column;
    return group;
}

/* Copy one row's query of one head, scaled, zeros behind it. */
static void copy_query(const struct group *group, int64_t row, int64_t head, float *output) {
    int32_t head_dim = group->attention->head_dim;
    const float *query = group->queries + row * group->queries_stride + head * head_dim;
    for (int64_t column = 0; column < group->stride; column += VECTOR_LANES) {
        int64_t left = column < head_dim ? head_dim - column : 0;
        vstore(output + column, vload_some(query + column, left) * group->attention->scale);
    }
}

/* --- one tile of keys ------------------------------------------------------------------------- */

/* Keys and values of a tile as float32, zeros behind each head. */
struct read_tile {
    float *keys;   /* in panels with columns and rows exchanged, or for a single query as they are */
    float *values; /* [TILE_KEYS, stride] */
};

/* Read a tile for heads that lie side by side, a few tokens of all of them at a time: in the order
 * in which memory has them. */
static void read_keys_and_values(const struct group *groups, const struct read_tile *tiles,
                                 int64_t num_groups, int turns, int64_t first_key,
                                 int64_t num_keys) {
    const char *rows[2 * PIECE_HEADS][TILE_KEYS];
    float scales[2 * PIECE_HEADS][TILE_KEYS];
    struct paged_rows keys[PIECE_HEADS], values[PIECE_HEADS];
    for (int64_t i = 0; i < num_groups; i++) {
        const struct group *group = groups + i;
        keys[i] = find_rows(&group->keys, first_key, num_keys, rows[2 * i], scales[2 * i]);
        values[i] = find_rows(&group->values, first_key, num_keys, rows[2 * i + 1],
                              scales[2 * i + 1]);
    }
    int64_t stride = groups->stride;
    for (int64_t key = 0; key < num_keys; key += VECTOR_LANES) {
        int64_t end = least_of(key + VECTOR_LANES, num_keys);
        int64_t place = key / PANEL_COLUMNS * PANEL_COLUMNS * stride + key % PANEL_COLUMNS;
        for (int64_t i = 0; i < num_groups; i++)
            if (turns)
                turn_rows(keys + i, key, num_keys - key, tiles[i].keys + place, PANEL_COLUMNS);
            else
                copy_rows(keys + i, key, end, tiles[i].keys, stride);
        for (int64_t i = 0; i < num_groups; i++)
            copy_rows(values + i, key, end, tiles[i].values, stride);
    }
}

/* scores[query][key] = query . key, of turned keys. */
static void score_queries(const struct group *group, const float *queries, int64_t num_queries,
                          const struct read_tile *tile, int64_t num_keys, float *scores) {
    struct product product = {
        .left = queries,
        .right = tile->keys,
        .sums = scores,
        .left_stride = group->stride,
        .right_stride = PANEL_COLUMNS,
        .right_panel = group->stride * PANEL_COLUMNS,
        .sums_stride = TILE_KEYS,
        .depth = group->attention->head_dim,
        .adds = 0,
    };
    multiply(&product, num_queries, (num_keys + PANEL_COLUMNS - 1) / PANEL_COLUMNS);
}

/* scores[key] = query . key of a single query, for which nothing is worth turning. */
static void score_query(const struct group *group, const float *query,
                        const struct read_tile *tile, int64_t num_keys, float *scores) {
    const float *keys = tile->keys;
    for (int64_t key = 0; key < num_keys; key++, keys += group->stride) {
        vfloat sums[2] = {{0}, {0}};
        for (int64_t column = 0; column < group->stride; column += PANEL_COLUMNS)
            for (int half = 0; half < 2; half++) {
                int64_t place = column + half * VECTOR_LANES;
                sums[half] += vload(query + place) * vload(keys + place);
            }
        scores[key] = vsum(sums[0] + sums[1]);
    }
}

/* Add values, weighed by what the scores have become. */
static void add_values(const struct group *group, int64_t num_queries,
                       const struct read_tile *tile, int64_t num_keys, const float *weights,
                       const struct gathered *gathered) {
    struct product product = {
        .left = weights,
        .right = tile->values,
        .sums = gathered->values,
        .left_stride = TILE_KEYS,
        .right_stride = group->stride,
        .right_panel = PANEL_COLUMNS,
        .sums_stride = group->stride,
        .depth = num_keys,
        .adds = 1,
    };
    multiply(&product, num_queries, group->stride / PANEL_COLUMNS);
}

/* --- one row ---------------------------------------------------------------------------------- */

/* What a piece knows of one group of heads: all of it is whole vectors of a worker's scratch. */
struct row_memory {
    float *queries; /* [repeats, stride] */
    float *scores;  /* [repeats, TILE_KEYS] */
    struct gathered gathered;
};

/* A part of the keys of some groups, or all keys. */
struct row_piece {
    struct group groups[PIECE_HEADS];
    struct read_tile tiles[PIECE_HEADS];
    struct row_memory memories[PIECE_HEADS];
    int64_t num_groups;
    int64_t first_kv_head;
    int64_t part;
};

static float *lay_out_row(const struct group *group, float *scratch, struct read_tile *tile,
                          struct row_memory *memory) {
    tile->keys = scratch;
    tile->values = tile->keys + TILE_KEYS * group->stride;
    memory->queries = tile->values + TILE_KEYS * group->stride;
    memory->scores = memory->queries + group->repeats * group->stride;
    memory->gathered.values = memory->scores + group->repeats * TILE_KEYS;
    memory->gathered.stride = group->stride;
    memory->gathered.largest = memory->gathered.values + group->repeats * group->stride;
    memory->gathered.total = memory->gathered.largest + group->repeats;
    return memory->gathered.total + group->repeats;
}

static void begin_group(const struct group *group, const struct row_memory *memory) {
    gather_nothing(&memory->gathered, group->repeats);
    for (int64_t head = 0; head < group->repeats; head++)
        copy_query(group, 0, head, memory->queries + head * group->stride);
}

static void attend_read_tile(const struct group *group, const struct row_memory *memory,
                             const struct read_tile *tile, int64_t num_keys) {
    if (group->repeats == 1)
        score_query(group, memory->queries, tile, num_keys, memory->scores);
    else
        score_queries(group, memory->queries, group->repeats, tile, num_keys, memory->scores);
    for (int64_t head = 0; head < group->repeats; head++) {
        float *scores = memory->scores + head * TILE_KEYS;
        if (group->attention->softcap != 0.0f) cap_scores(scores, group->attention->softcap);
        weigh_scores(&memory->gathered, head, scores, 0, num_keys);
    }
    add_values(group, group->repeats, tile, num_keys, memory->scores, &memory->gathered);
}

/* Attend to keys first .. end of one row. */
static void attend_row_part(const struct row_piece *piece, int64_t first, int64_t end) {
    int64_t num_groups = piece->num_groups;
    for (int64_t i = 0; i < num_groups; i++) begin_group(piece->groups + i, piece->memories + i);
    for (int64_t tile = first; tile < end; tile += TILE_KEYS) {
        int64_t num_keys = least_of(end - tile, TILE_KEYS);
        read_keys_and_values(piece->groups, piece->tiles, num_groups, piece->groups->repeats > 1,
                             tile, num_keys);
        for (int64_t i = 0; i < num_groups; i++)
            attend_read_tile(piece->groups + i, piece->memories + i, piece->tiles + i, num_keys);
    }
}

static const float *sink_of(const struct group *group, int64_t head) {
    const float *sinks = group->attention->sinks;
    return sinks == NULL ? NULL : sinks + group->first_head + head;
}

/* Write a part of one head: the largest score, the sum, the values. */
static void write_part(const struct gathered *gathered, int64_t head, int32_t head_dim,
                       float *part) {
    part[0] = gathered->largest[head];
    part[1] = gathered->total[head];
    memcpy(part + 2, gathered->values + head * gathered->stride,
           (size_t)head_dim * sizeof(float));
}

/* Join the parts of one head, in their order, `part_stride` apart. */
static void join_parts(const struct group *group, int64_t head, const float *parts,
                       int64_t num_parts, int64_t part_stride, float *values) {
    int32_t head_dim = group->attention->head_dim;
    float largest = NO_SCORE, total = 0.0f;
    for (int64_t i = 0; i < num_parts; i++)
        largest = parts[i * part_stride] > largest ? parts[i * part_stride] : largest;
    memset(values, 0, (size_t)group->stride * sizeof(float));
    for (int64_t i = 0; i < num_parts; i++) {
        const float *part = parts + i * part_stride;
        float kept = vexp(vbroadcast(part[0] - largest))[0];
        total += part[1] * kept;
        for (int32_t column = 0; column < head_dim; column += VECTOR_LANES) {
            vfloat added = vload_some(part + 2 + column, head_dim - column) * kept;
            vstore(values + column, vload(values + column) + added);
        }
    }
    finish_query(values, largest, total, sink_of(group, head), head_dim,
                 group->mixed + head * head_dim);
}

/* Keep what a part of the keys has given; whoever brings a row's last part joins them all. */
static void keep_part(const struct row_piece *piece, const struct zse_step *step,
                      int64_t num_parts) {
    const struct group *first = piece->groups;
    const struct zse_attention *attention = first->attention;
    int64_t chunk = first->chunk - step->chunks, width = attention->head_dim + 2;
    int64_t part_stride = attention->num_heads * width;
    float *parts = step->registers[ZSE_PARTIAL] + chunk * ZSE_ATTENTION_PARTS * part_stride +
                   first->first_head * width;
    for (int64_t head = 0; head < piece->num_groups * first->repeats; head++)
        write_part(&piece->memories[head / first->repeats].gathered, head % first->repeats,
                   attention->head_dim, parts + piece->part * part_stride + head * width);
    int32_t *arrived = (int32_t *)step->registers[ZSE_ARRIVED] +
                       chunk * attention->num_kv_heads + piece->first_kv_head;
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) < num_parts) return;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    for (int64_t head = 0; head < piece->num_groups * first->repeats; head++)
        join_parts(piece->groups + head / first->repeats, head % first->repeats,
                   parts + head * width, num_parts, part_stride,
                   piece->memories->gathered.values);
}

static void finish_group(const struct group *group, const struct gathered *gathered) {
    int32_t head_dim = group->attention->head_dim;
    for (int64_t head = 0; head < group->repeats; head++)
        finish_query(gathered->values + head * gathered->stride, gathered->largest[head],
                     gathered->total[head], sink_of(group, head), head_dim,
                     group->mixed + head * head_dim);
}

static void run_row_piece(const struct zse_operation *operation, const struct zse_step *step,
                          const struct zse_rows *chunk, int64_t number, float *scratch) {
    const struct zse_attention *attention = operation->attention;
    struct row_split split = split_row(attention, chunk->start_position);
    int64_t pieces = head_pieces(attention, &split);
    struct row_piece piece;
    piece.first_kv_head = number % pieces * split.heads_a_piece;
    piece.part = number / pieces;
    piece.num_groups = least_of(split.heads_a_piece,
                                attention->num_kv_heads - piece.first_kv_head);
    for (int64_t i = 0; i < piece.num_groups; i++) {
        piece.groups[i] = group_of(operation, step, chunk, piece.first_kv_head + i);
        scratch = lay_out_row(piece.groups + i, scratch, piece.tiles + i, piece.memories + i);
    }
    int64_t first = split.first_key + piece.part * split.part_keys;
    attend_row_part(&piece, first, least_of(first + split.part_keys, split.end_key));
    if (split.num_parts > 1)
        keep_part(&piece, step, split.num_parts);
    else
        for (int64_t i = 0; i < piece.num_groups; i++)
            finish_group(piece.groups + i, &piece.memories[i].gathered);
}

/* --- prompts ---------------------------------------------------------------------------------- */

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
    tile.scores = tile.read.values + TILE_KEYS * group->stride;
    tile.gathered.values = tile.scores + queries * TILE_KEYS;
    tile.gathered.stride = group->stride;
    tile.gathered.largest = tile.gathered.values + queries * group->stride;
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
        int64_t end = position + 1 - first_key;
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
    /* Tokens before the first key see none of these: the last tiles have fewer and fewer queries. */
    int64_t blind = first_key - (group->chunk->start_position + tile.first_token);
    if (blind > 0) {
        int64_t queries = blind * group->repeats;
        tile.first_token += blind;
        tile.num_tokens -= blind;
        tile.queries += queries * group->stride;
        tile.gathered.largest += queries;
        tile.gathered.total += queries;
        tile.gathered.values += queries * group->stride;
    }
    int64_t queries = tile.num_tokens * group->repeats;
    read_keys_and_values(group, &tile.read, 1, 1, first_key, num_keys);
    score_queries(group, tile.queries, queries, &tile.read, num_keys, tile.scores);
    weigh_tile(group, &tile, first_key, num_keys);
    add_values(group, queries, &tile.read, num_keys, tile.scores, &tile.gathered);
}

static void run_tile_piece(const struct zse_operation *operation, const struct zse_step *step,
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
    int64_t end_key = first_position + tile.num_tokens;
    for (int64_t key = first_key_of(attention, first_position); key < end_key; key += TILE_KEYS)
        attend_tile(&group, &tile, key, end_key - key < TILE_KEYS ? end_key - key : TILE_KEYS);
    for (int64_t query = 0; query < tile.num_tokens * group.repeats; query++) {
        int64_t head = query % group.repeats;
        finish_query(tile.gathered.values + query * group.stride, tile.gathered.largest[query],
                     tile.gathered.total[query], sink_of(&group, head), attention->head_dim,
                     group.mixed + (first_token + query / group.repeats) * group.mixed_stride +
                         head * attention->head_dim);
    }
}

/* --- pieces ----------------------------------------------------------------------------------- */

static int64_t count_pieces(const struct zse_operation *operation, const struct zse_step *step,
                            int num_threads) {
    (void)num_threads;
    int64_t count = 0;
    for (int64_t chunk = 0; chunk < step->num_chunks; chunk++)
        count += count_chunk_pieces(operation->attention, step->chunks + chunk);
    return count;
}

static void run_piece(const struct zse_operation *operation, const struct zse_step *step,
                      int64_t piece, struct zse_worker *worker) {
    const struct zse_rows *chunk = step->chunks;
    for (int64_t count; piece >= (count = count_chunk_pieces(operation->attention, chunk)); chunk++)
        piece -= count;
    if (chunk->num_rows > 1)
        run_tile_piece(operation, step, chunk, piece, worker->scratch);
    else
        run_row_piece(operation, step, chunk, piece, worker->scratch);
}

const struct zse_kernel zse_attend = {count_pieces, run_piece};
