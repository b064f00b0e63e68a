/* Attention of one row. Its keys fall into parts that threads share, whatever the batch is. */
#include "attend.h"
#include "read_tile.h"

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
    memory->queries = tile->values + TILE_KEYS * group->value_stride;
    memory->scores = memory->queries + group->repeats * group->stride;
    memory->gathered.values = memory->scores + group->repeats * TILE_KEYS;
    memory->gathered.stride = group->value_stride;
    memory->gathered.largest = memory->gathered.values + group->repeats * group->value_stride;
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

/* Write a part of one head: the largest score, the sum, the values. */
static void write_part(const struct gathered *gathered, int64_t head, int64_t value_dim,
                       float *part) {
    part[0] = gathered->largest[head];
    part[1] = gathered->total[head];
    memcpy(part + 2, gathered->values + head * gathered->stride,
           (size_t)value_dim * sizeof(float));
}

/* Join the parts of one head, in their order, `part_stride` apart. */
static void join_parts(const struct group *group, int64_t head, const float *parts,
                       int64_t num_parts, int64_t part_stride, float *values) {
    int64_t value_dim = group->value_dim;
    float largest = NO_SCORE, total = 0.0f;
    for (int64_t i = 0; i < num_parts; i++)
        largest = parts[i * part_stride] > largest ? parts[i * part_stride] : largest;
    memset(values, 0, (size_t)group->value_stride * sizeof(float));
    for (int64_t i = 0; i < num_parts; i++) {
        const float *part = parts + i * part_stride;
        float kept = vexp(vbroadcast(part[0] - largest))[0];
        total += part[1] * kept;
        for (int64_t column = 0; column < value_dim; column += VECTOR_LANES) {
            vfloat added = vload_some(part + 2 + column, value_dim - column) * kept;
            vstore(values + column, vload(values + column) + added);
        }
    }
    finish_query(values, largest, total, sink_of(group, head), value_dim,
                 group->mixed + head * value_dim);
}

/* Keep what a part of the keys has given; whoever brings a row's last part joins them all. */
static void keep_part(const struct row_piece *piece, const struct zse_step *step,
                      int64_t num_parts) {
    const struct group *first = piece->groups;
    const struct zse_attention *attention = first->attention;
    int64_t chunk = first->chunk - step->chunks, width = first->value_dim + 2;
    int64_t part_stride = attention->num_heads * width;
    float *parts = step->registers[ZSE_PARTIAL] + chunk * ZSE_ATTENTION_PARTS * part_stride +
                   first->first_head * width;
    for (int64_t head = 0; head < piece->num_groups * first->repeats; head++)
        write_part(&piece->memories[head / first->repeats].gathered, head % first->repeats,
                   first->value_dim, parts + piece->part * part_stride + head * width);
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
    for (int64_t head = 0; head < group->repeats; head++)
        finish_query(gathered->values + head * gathered->stride, gathered->largest[head],
                     gathered->total[head], sink_of(group, head), group->value_dim,
                     group->mixed + head * group->value_dim);
}

void zse_attend_row(const struct zse_operation *operation, const struct zse_step *step,
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
