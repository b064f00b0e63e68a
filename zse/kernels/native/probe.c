/* Whether this processor really runs the instructions that its flags promise. */
#include "zse.h"

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A host can name instructions to its guests and refuse them: they are tried where only a child
 * dies of it. The child may call nothing that is not safe after a fork of one thread among many. */
int32_t zse_probe(void)
{
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        prctl(PR_SET_DUMPABLE, 0);
        volatile int ones = 0x01010101;
        const __m512i bytes = _mm512_set1_epi32(ones);
        const __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), bytes, bytes);
        _exit(_mm512_reduce_add_epi32(sums) == 64 ? 0 : 1);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

#else

int32_t zse_probe(void)
{
    return 1;
}

#endif
