#include "cuda/gate_view.h"

#include <sys/mman.h>

#include "paths.h"

/* A child of a fork has its parent's mappings. */
static struct mapped_gate {
    const struct vcuda_gate *gate; /* NULL: not looked for yet, or `missing` */
    bool missing;
} mapped_gates[VCUDA_MAX_CARDS];

/* Two threads may both map it: the mapping is a page, and the second stays unused. */
const struct vcuda_gate *gate_view(int card, const uint8_t uuid[16]) {
    struct mapped_gate *here = &mapped_gates[card];
    const struct vcuda_gate *gate = __atomic_load_n(&here->gate, __ATOMIC_ACQUIRE);
    char path[PATHS_MAX];
    void *mapped = NULL;
    int error = 0;
    if (gate || __atomic_load_n(&here->missing, __ATOMIC_RELAXED))
        return gate;
    if (paths_gate(path, uuid) && !page_map(path, VCUDA_GATE_SIZE, false, &mapped, &error)) {
        gate = mapped;
        if (gate->magic == VCUDA_GATE_MAGIC) {
            __atomic_store_n(&here->gate, gate, __ATOMIC_RELEASE);
            return gate;
        }
        munmap(mapped, VCUDA_GATE_SIZE);
    }
    __atomic_store_n(&here->missing, true, __ATOMIC_RELAXED);
    return NULL;
}

const struct vcuda_gate *gate_mapped(int card) {
    return __atomic_load_n(&mapped_gates[card].gate, __ATOMIC_ACQUIRE);
}

bool gate_was_moved(int card, uint64_t since) {
    const struct vcuda_gate *gate = gate_mapped(card);
    return gate && (__atomic_load_n(&gate->closed_until_ns, __ATOMIC_ACQUIRE) > since ||
                    __atomic_load_n(&gate->closed_at_ns, __ATOMIC_RELAXED) >= since ||
                    __atomic_load_n(&gate->opened_at_ns, __ATOMIC_RELAXED) >= since);
}
