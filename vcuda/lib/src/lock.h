/* A spin lock in one word, held for a few instructions at a time. Never held across a driver call, so no thread waits
 * for a card through it. */
#ifndef VCUDA_LOCK_H
#define VCUDA_LOCK_H

#include <sched.h>
#include <stdbool.h>

/* Take the lock if it is free. */
static inline bool spin_try(bool *lock) {
    return !__atomic_exchange_n(lock, true, __ATOMIC_ACQUIRE);
}

static inline void spin_lock(bool *lock) {
    for (unsigned tries = 0; !spin_try(lock);)
        if (++tries % 64 == 0)
            sched_yield();
}

static inline void spin_unlock(bool *lock) {
    __atomic_store_n(lock, false, __ATOMIC_RELEASE);
}

#endif
