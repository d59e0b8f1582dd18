/* What every file of the compiled core shares.
 *
 * The core is plain C11 without Python's headers: one library serves every Python of a platform. Python calls it
 * through ctypes (native.py) with the addresses of NumPy buffers, so the rules of this folder are:
 *
 *  - A function gets lengths with its buffers and reads and writes nothing outside them. Whatever comes out of a
 *    file (positions, lengths, counts) is checked before it is used, not trusted.
 *  - It keeps no state, allocates nothing that outlives the call, and says failure by its return value.
 *  - Its result is bit for bit that of the Python function that it stands in for: integers wrap or are checked as
 *    there, sums of floats are taken in the same order.
 *  - Signed overflow is undefined in C: sums of times from files go through the helpers below.
 */
#ifndef GPUSIGHT_CORE_H
#define GPUSIGHT_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define GPUSIGHT_API __declspec(dllexport)
#else
#define GPUSIGHT_API __attribute__((visibility("default")))
#endif

/* What functions return that can fail; native.py turns each into an exception or a fallback. */
enum {
    GPUSIGHT_DONE = 0,
    GPUSIGHT_NO_MEMORY = -1,
    GPUSIGHT_BAD_INPUT = -2, /* an index, length or value outside of what the contract allows */
};

/* Integer arithmetic of NumPy: it wraps. */
static inline int64_t wrap_add(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static inline int64_t wrap_sub(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }

/* Allocate `count` elements of `size` bytes; NULL where that does not fit. Asking for none gives a real address. */
static inline void *allocate(int64_t count, size_t size)
{
    if (count < 0 || (uint64_t)count > (SIZE_MAX - 1) / size)
        return NULL;
    return malloc((size_t)count * size + 1);
}

/* Find the first position of `n` rising values that is beyond a time, looking near `hint` first: queries mostly rise. */
static inline int64_t seek(int64_t n, const int64_t *values, int64_t time, int right, int64_t hint)
{
    /* values[low - 1] comes before the time, values[high] does not; -1 and n stand for such values. */
    int64_t low, high, step = 1;
#define IS_BEFORE(at) (right ? values[at] <= time : values[at] < time)
    if (hint < n && IS_BEFORE(hint)) {
        low = hint + 1;
        while (step < n - low && IS_BEFORE(low + step - 1)) {
            low += step;
            step *= 2;
        }
        high = step < n - low ? low + step - 1 : n;
    } else if (hint > 0 && !IS_BEFORE(hint - 1)) {
        high = hint - 1;
        while (step < high && !IS_BEFORE(high - step)) {
            high -= step;
            step *= 2;
        }
        low = step < high ? high - step + 1 : 0;
    } else {
        return hint;
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (IS_BEFORE(middle))
            low = middle + 1;
        else
            high = middle;
    }
#undef IS_BEFORE
    return low;
}

#endif
