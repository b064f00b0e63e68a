/* Exponentials and their kin over vectors, to a few units in the last place. A lane's result
 * depends on that lane's number alone, so a number gives the same bits wherever it lies. */
#ifndef ZSE_VECTOR_MATH_H
#define ZSE_VECTOR_MATH_H

#include "vector.h"

#define LOG2_E 1.44269504088896340736
/* ln 2 in two parts: the first ends in zeros, so that its product with a whole number is exact. */
#define LN2_HIGH_SINGLE 0.693359375f
#define LN2_LOW_SINGLE (-2.12194440e-4f)
#define LN2_HIGH_DOUBLE 6.93145751953125e-1
#define LN2_LOW_DOUBLE 1.42860682030941723212e-6

/* e^x; 0 below -86.9, before float32 would become subnormal, which is slow. */
ALWAYS_INLINE vfloat vexp(vfloat x) {
    vint vanishes = x < -86.9f;
    x = vselect(x > 89.0f, vbroadcast(89.0f), x);
    x = (vfloat)((vint)x & ~vanishes);
    const float to_whole = 0x1.8p23f; /* adding it rounds to a whole number in the lowest bits */
    vfloat shifted = x * (float)LOG2_E + to_whole;
    vint power = (vint)shifted - (vint)vbroadcast(to_whole);
    vfloat whole = shifted - to_whole;
    vfloat rest = x - whole * LN2_HIGH_SINGLE;
    rest = rest - whole * LN2_LOW_SINGLE;
    vfloat series = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * (rest * rest) + rest + 1.0f;
    /* By half of it, then twice: 2^128 is beyond what one exponent holds, and becomes infinite. */
    vfloat result = series * (vfloat)((power + 126) << 23) * 2.0f;
    return (vfloat)((vint)result & ~vanishes);
}

ALWAYS_INLINE vfloat vsigmoid(vfloat x) { return 1.0f / (1.0f + vexp(-x)); }

ALWAYS_INLINE vfloat vtanh(vfloat x) {
    vfloat size = vabsolute(x);
    vint sign = (vint)x & (vint)vbroadcast(-0.0f);
    vfloat square = x * x;
    vfloat series = square * -5.70498872745e-3f + 2.06390887954e-2f;
    series = series * square - 5.37397155531e-2f;
    series = series * square + 1.33314422036e-1f;
    series = series * square - 3.33332819422e-1f;
    vfloat near = series * (square * x) + x;
    vfloat far = 1.0f - 2.0f / (vexp(size + size) + 1.0f);
    return vselect(size < 0.625f, near, (vfloat)((vint)far | sign));
}

/* 1 - erf(x), without the loss that the subtraction would have where erf is near 1. */
ALWAYS_INLINE vfloat verfc(vfloat x) {
    vfloat size = vabsolute(x), square = x * x;
    vfloat near = square * -5.96761703e-4f + 4.99119423e-3f;
    near = near * square - 2.67681349e-2f;
    near = near * square + 1.12819925e-1f;
    near = near * square - 3.76125336e-1f;
    near = near * square + 1.28379166e-1f;
    near = 1.0f - (near * x + x);
    vfloat t = vselect(size > 10.0f, vbroadcast(10.0f), size);
    vfloat far = t * -1.72853470e-5f + 3.83197126e-4f;
    far = far * (t * t) + (t * -3.88396438e-3f + 2.42546219e-2f);
    far = far * t - 1.06777877e-1f;
    far = far * t - 6.34846687e-1f;
    far = far * t - 1.28717512e-1f;
    far = vexp(far * t - t); /* of |x| */
    far = vselect(x < 0.0f, 2.0f - far, far);
    return vselect(size > 0.927734375f, far, near);
}

typedef double vdouble __attribute__((vector_size(4 * VECTOR_LANES)));
typedef int64_t vlong __attribute__((vector_size(4 * VECTOR_LANES)));
#define DOUBLE_LANES (VECTOR_LANES / 2)

/* e^x of numbers up to 0; 0 below -708, where float64 would become subnormal, and of no number. */
ALWAYS_INLINE vdouble vexp_double(vdouble x) {
    vlong usable = x >= -708.0;
    x = (vdouble)((vlong)x & usable);
    const double to_whole = 0x1.8p52;
    vdouble shifted = x * LOG2_E + to_whole;
    vlong power = (vlong)shifted - (vlong)(to_whole - (vdouble){0});
    vdouble whole = shifted - to_whole;
    vdouble rest = x - whole * LN2_HIGH_DOUBLE;
    rest = rest - whole * LN2_LOW_DOUBLE;
    vdouble series = rest * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    series = series * rest + 1.0 / 39916800.0;
    series = series * rest + 1.0 / 3628800.0;
    series = series * rest + 1.0 / 362880.0;
    series = series * rest + 1.0 / 40320.0;
    series = series * rest + 1.0 / 5040.0;
    series = series * rest + 1.0 / 720.0;
    series = series * rest + 1.0 / 120.0;
    series = series * rest + 1.0 / 24.0;
    series = series * rest + 1.0 / 6.0;
    series = series * rest + 0.5;
    series = series * (rest * rest) + rest + 1.0;
    vdouble result = series * (vdouble)((power + 1023) << 52);
    return (vdouble)((vlong)result & usable);
}

#endif
