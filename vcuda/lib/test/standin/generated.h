/* What generate.py writes for each driver version, from the name lists in vcuda/lib/gen and the models' sources. */
#ifndef STANDIN_GENERATED_H
#define STANDIN_GENERATED_H

#include <stdbool.h>
#include <stdint.h>

/* What the resolver hands out: for a name asked with at least `version`, by stream mode. Sorted by name, version. */
struct variant {
    const char *name;
    int version;
    bool per_thread;
    void *function;
};

extern const struct variant standin_variants[];
extern const int standin_variant_count;
extern const int standin_cuda_version;
extern const char standin_driver_version[]; /* as NVML says it */

/* 0: no call needs standin_enter. */
extern int standin_gate;
int standin_enter(const char *name);
int standin_unmodelled(const char *name);
int standin_injected(const char *name);
/* Set while a `_ptsz` or `_ptds` name runs: the null stream is then the per-thread one. */
extern __thread bool standin_per_thread;

#endif
