#include "fork.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#define MOST 16 /* there are twelve */

static void (*registered[MOST])(void);

static void forget_all(void) {
    for (unsigned i = 0; i < MOST && registered[i]; i++)
        registered[i]();
}

void fork_forgets(void (*forget)(void)) {
    static bool watching;
    for (unsigned i = 0; i < MOST; i++) {
        void (*found)(void) = NULL;
        if (__atomic_load_n(&registered[i], __ATOMIC_RELAXED) == forget)
            return;
        if (__atomic_compare_exchange_n(&registered[i], &found, forget, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED) ||
            found == forget)
            break;
    }
    if (!__atomic_exchange_n(&watching, true, __ATOMIC_RELAXED))
        pthread_atfork(NULL, NULL, forget_all);
}
