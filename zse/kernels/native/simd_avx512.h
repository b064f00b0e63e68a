/* AVX-512 with VNNI: four bytes are multiplied, unsigned by signed, into 32 bits. */
#include "simd_x86.h"

#define SIMD_DPBUSD _mm256_dpbusd_epi32
#include "simd_vnni.h"

/* 128 columns at once, where they are one group or two. Codes are multiplied as unsigned bytes: what
 * 128 more in each signed one makes too much is the same for all rows, and sums begin without it. */
#define SIMD_SPAN 128
typedef __m512i simd_span_lanes;

struct simd_span {
    __m512i part[2];
};

/* The columns of a span, in the order of its codes, and what sums begin with. */
struct simd_span_columns {
    __m512i part[2];
    __m512i start;
};

/* Of int8 codes, or of nibbles: codes 0 to 15, or those that a table has for them. Of two groups of 64
 * nibbles, the first part has the first half of both. */
SIMD_INLINE struct simd_span simd_load_span(const uint8_t *bytes, int is_int8,
                                            const int8_t *table) {
    const __m512i offset = _mm512_set1_epi8(-128), nibble = _mm512_set1_epi8(15);
    __m512i first = _mm512_loadu_si512(bytes);
    if (is_int8)
        return (struct simd_span){{_mm512_xor_si512(first, offset),
                                   _mm512_xor_si512(_mm512_loadu_si512(bytes + 64), offset)}};
    struct simd_span codes = {{_mm512_and_si512(first, nibble),
                               _mm512_and_si512(_mm512_srli_epi16(first, 4), nibble)}};
    if (!table)
        return codes;
    __m128i small = _mm_loadu_si128((const __m128i *)table);
    __m512i values = _mm512_xor_si512(_mm512_broadcast_i32x4(small), offset);
    for (int i = 0; i < 2; i++)
        codes.part[i] = _mm512_shuffle_epi8(values, codes.part[i]);
    return codes;
}

SIMD_INLINE struct simd_span_columns simd_span_columns(const int8_t *activations, int is_signed,
                                                       int group) {
    __m512i first = _mm512_loadu_si512(activations), last = _mm512_loadu_si512(activations + 64);
    struct simd_span_columns columns = {{first, last}, _mm512_setzero_si512()};
    if (group == 64) {
        columns.part[0] = _mm512_shuffle_i64x2(first, last, _MM_SHUFFLE(1, 0, 1, 0));
        columns.part[1] = _mm512_shuffle_i64x2(first, last, _MM_SHUFFLE(3, 2, 3, 2));
    }
    if (is_signed) {
        __m512i excess = columns.start;
        for (int i = 0; i < 2; i++)
            excess = _mm512_dpbusd_epi32(excess, _mm512_set1_epi8(-128), columns.part[i]);
        columns.start = _mm512_sub_epi32(columns.start, excess);
    }
    return columns;
}

SIMD_INLINE simd_span_lanes simd_span_dot(struct simd_span codes,
                                          const struct simd_span_columns *columns) {
    __m512i sums = _mm512_dpbusd_epi32(columns->start, codes.part[0], columns->part[0]);
    return _mm512_dpbusd_epi32(sums, codes.part[1], columns->part[1]);
}

SIMD_INLINE __m512i simd_join_wide_pairs(__m512i first, __m512i second) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(first, second),
                            _mm512_unpackhi_epi64(first, second));
}

/* The sums of halves of eight rows: of four rows' first halves, and so on. */
SIMD_INLINE __m512i simd_span_halves(const simd_span_lanes *rows) {
    __m512i pairs[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                                    _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]));
    __m512i first = simd_join_wide_pairs(pairs[0], pairs[1]);
    __m512i last = simd_join_wide_pairs(pairs[2], pairs[3]);
    __m512i both = _mm512_add_epi32(_mm512_shuffle_i32x4(first, last, _MM_SHUFFLE(2, 0, 2, 0)),
                                    _mm512_shuffle_i32x4(first, last, _MM_SHUFFLE(3, 1, 3, 1)));
    return _mm512_shuffle_i32x4(both, both, _MM_SHUFFLE(3, 1, 2, 0));
}

/* Eight rows' sums of a group, or of each of two, whose products lie in a half. */
SIMD_INLINE void simd_span_sums(const simd_span_lanes *rows, int group, simd_floats *sums) {
    __m512i both = simd_span_halves(rows);
    __m256i low = _mm512_castsi512_si256(both), high = _mm512_extracti64x4_epi64(both, 1);
    if (group == SIMD_SPAN)
        low = _mm256_add_epi32(low, high);
    sums[0] = (simd_floats)_mm256_cvtepi32_ps(low);
    sums[1] = (simd_floats)_mm256_cvtepi32_ps(high);
}

/* The same written one behind the other, a row's two groups side by side. */
SIMD_INLINE void simd_store_span_sums(const simd_span_lanes *rows, int group, float *sums) {
    const __m512i order =
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    if (group == SIMD_SPAN) {
        simd_floats both[2];
        simd_span_sums(rows, group, both);
        simd_store(sums, both[0]);
        return;
    }
    __m512i halves = _mm512_permutexvar_epi32(order, simd_span_halves(rows));
    _mm512_storeu_ps(sums, _mm512_cvtepi32_ps(halves));
}

/* Tiles: weights of 32 rows turned so that a vector has four columns of sixteen rows, which are
 * multiplied with the columns of eight rows of activations at a time. */
#define SIMD_TILE_INPUTS 8
#define SIMD_TILE_VECTORS 2
#define SIMD_TILE_WIDTH 16
typedef float simd_wide __attribute__((vector_size(64)));
/* What activations of signed codes are prepared as: 128 is added, as one side is unsigned. */
typedef uint8_t simd_prepared;

/* Bytes of two times sixteen rows' group in a tile; signed ones are followed by what the 128 that
 * was added to their activations makes too much, negated. */
SIMD_INLINE int64_t simd_strip_bytes(int is_small, int group) {
    int64_t rows = SIMD_TILE_VECTORS * SIMD_TILE_WIDTH;
    return group * rows + (is_small ? 0 : rows * (int64_t)sizeof(int32_t));
}

SIMD_INLINE simd_wide simd_wide_all(float number) {
    return (simd_wide)_mm512_set1_ps(number);
}

SIMD_INLINE simd_wide simd_wide_fused(simd_wide left, simd_wide right, simd_wide added) {
    return (simd_wide)_mm512_fmadd_ps((__m512)left, (__m512)right, (__m512)added);
}

SIMD_INLINE void simd_prepare(const int8_t *codes, int64_t count, simd_prepared *output) {
    for (int64_t i = 0; i < count; i += 32) {
        __m256i bytes = _mm256_load_si256((const __m256i *)(codes + i));
        _mm256_store_si256((__m256i *)(output + i),
                           _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)));
    }
}

SIMD_INLINE void simd_prepare_halves(const int8_t *codes, int64_t count, simd_prepared *output) {
    simd_prepare(codes, count, output);
}

/* Where four columns of the first eight of sixteen rows lie in a tile; the others follow. */
SIMD_INLINE __m256i *simd_place(void *tile, int vector, int word) {
    return (__m256i *)tile + 2 * (word * SIMD_TILE_VECTORS + vector);
}

/* Put a group of sixteen rows, where they lie, into a tile as its vector number `vector`. */
SIMD_INLINE void simd_pack_int4(const uint8_t *const *rows, int vector, int group, void *tile) {
    for (int word = 0; word < group / 8; word += 4) {
        for (int half = 0; half < 2; half++) {
            __m256i words[4];
            simd_turn_rows(rows + 8 * half, 4 * word, words);
            for (int i = 0; i < 4; i++) {
                simd_place(tile, vector, word + i)[half] = simd_low_nibbles(words[i]);
                simd_place(tile, vector, group / 8 + word + i)[half] =
                    simd_high_nibbles(words[i]);
            }
        }
    }
}

/* Add up what 128 more in each activation would add. */
SIMD_INLINE void simd_put_excess(void *tile, int vector, int group) {
    __m512i *words = (__m512i *)tile + vector;
    __m512i excess = _mm512_setzero_si512();
    for (int word = 0; word < group / 4; word++) {
        __m512i weights = _mm512_load_si512(words + SIMD_TILE_VECTORS * word);
        excess = _mm512_dpbusd_epi32(excess, _mm512_set1_epi8(-128), weights);
    }
    _mm512_store_si512(words + SIMD_TILE_VECTORS * (group / 4),
                       _mm512_sub_epi32(_mm512_setzero_si512(), excess));
}

/* Of the same bytes where codes stand for the values of a table. */
SIMD_INLINE void simd_pack_table(const uint8_t *const *rows, const int8_t *table, int vector,
                                 int group, void *tile) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    simd_pack_int4(rows, vector, group, tile);
    for (int word = 0; word < group / 4; word++) {
        __m256i *codes = simd_place(tile, vector, word);
        codes[0] = _mm256_shuffle_epi8(values, codes[0]);
        codes[1] = _mm256_shuffle_epi8(values, codes[1]);
    }
    simd_put_excess(tile, vector, group);
}

/* The same for 32 columns as two tiles of 16: of the low nibbles, then of the high ones. */
SIMD_INLINE void simd_pack_halves(const uint8_t *const *rows, const int8_t *table, int vector,
                                  void *tile) {
    __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    void *last = (char *)tile + simd_strip_bytes(0, 16);
    for (int half = 0; half < 2; half++) {
        __m256i words[4];
        simd_turn_rows(rows + 8 * half, 0, words);
        for (int i = 0; i < 4; i++) {
            simd_place(tile, vector, i)[half] =
                _mm256_shuffle_epi8(values, simd_low_nibbles(words[i]));
            simd_place(last, vector, i)[half] =
                _mm256_shuffle_epi8(values, simd_high_nibbles(words[i]));
        }
    }
    simd_put_excess(tile, vector, 16);
    simd_put_excess(last, vector, 16);
}

SIMD_INLINE void simd_pack_int8(const uint8_t *const *rows, int vector, int group, void *tile) {
    for (int word = 0; word < group / 4; word += 4) {
        for (int half = 0; half < 2; half++) {
            __m256i words[4];
            simd_turn_rows(rows + 8 * half, 4 * word, words);
            for (int i = 0; i < 4; i++)
                simd_place(tile, vector, word + i)[half] = words[i];
        }
    }
    simd_put_excess(tile, vector, group);
}

SIMD_INLINE __m512i simd_word(const void *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

/* The sums of a group, of codes 0 to 15. */
SIMD_INLINE void simd_tile_small(const void *tile, const int8_t *const *inputs, int group,
                                 simd_wide sums[][SIMD_TILE_VECTORS]) {
    const __m512i *weights = tile;
    __m512i wide[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS] = {0};
    for (int word = 0; word < group / 4; word++) {
        __m512i first = _mm512_load_si512(weights + 2 * word);
        __m512i second = _mm512_load_si512(weights + 2 * word + 1);
#pragma GCC unroll 8
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            __m512i columns = simd_word(inputs[i] + 4 * word);
            wide[i][0] = _mm512_dpbusd_epi32(wide[i][0], first, columns);
            wide[i][1] = _mm512_dpbusd_epi32(wide[i][1], second, columns);
        }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = (simd_wide)_mm512_cvtepi32_ps(wide[i][vector]);
}

SIMD_INLINE void simd_tile_signed(const void *tile, const simd_prepared *const *inputs, int group,
                                  simd_wide sums[][SIMD_TILE_VECTORS]) {
    const __m512i *weights = tile;
    const __m512i *excess = weights + SIMD_TILE_VECTORS * (group / 4);
    __m512i wide[SIMD_TILE_INPUTS][SIMD_TILE_VECTORS];
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            wide[i][vector] = _mm512_load_si512(excess + vector);
    for (int word = 0; word < group / 4; word++) {
        __m512i first = _mm512_load_si512(weights + 2 * word);
        __m512i second = _mm512_load_si512(weights + 2 * word + 1);
#pragma GCC unroll 8
        for (int i = 0; i < SIMD_TILE_INPUTS; i++) {
            __m512i columns = simd_word(inputs[i] + 4 * word);
            wide[i][0] = _mm512_dpbusd_epi32(wide[i][0], columns, first);
            wide[i][1] = _mm512_dpbusd_epi32(wide[i][1], columns, second);
        }
    }
    for (int i = 0; i < SIMD_TILE_INPUTS; i++)
        for (int vector = 0; vector < SIMD_TILE_VECTORS; vector++)
            sums[i][vector] = (simd_wide)_mm512_cvtepi32_ps(wide[i][vector]);
}
