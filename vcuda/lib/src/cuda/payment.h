/* Pays for work from credit that the process has in hand, otherwise from the container's credit, waiting if it is
 * spent. */
#ifndef VCUDA_PAYMENT_H
#define VCUDA_PAYMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/stream_meter.h"
#include "page.h"

/* Credit that the process has taken from the container and not spent yet. It is taken in larger pieces, so that few
 * launches touch memory shared between processes. Not per thread, or it would be lost when the thread ends. */
extern struct pocket {
    _Alignas(64) int64_t ns;
} pockets[VCUDA_MAX_CARDS];

static inline bool pocket_take(int card, uint64_t ns) {
    int64_t *pocket = &pockets[card].ns, left = __atomic_load_n(pocket, __ATOMIC_RELAXED);
    do
        if (left < (int64_t)ns)
            return false;
    while (!__atomic_compare_exchange_n(pocket, &left, left - (int64_t)ns, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return true;
}

static inline void pocket_put(int card, uint64_t ns) {
    __atomic_fetch_add(&pockets[card].ns, (int64_t)ns, __ATOMIC_RELAXED);
}

/* Wait until work that costs `ns` may go ahead on this stream, and pay for it. `unknown`: its kind was never measured.
 * The calling thread holds none of the library's locks; errno is preserved. */
void payment_wait(struct stream_meter *meter, uint64_t ns, bool unknown);

#endif
