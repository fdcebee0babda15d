/*
 * Export tables: the driver's undocumented side door, which the CUDA runtime insists on. What a table's entries do
 * was watched from outside, on the runtimes 12.9 and 13.5: they ask for three tables, call entry 2 of one for a
 * device's primary context, and entries 2 and 6 of another for arrays in which a profiler would switch callbacks on.
 * Every other entry of every table succeeds and does nothing; any id gets a table.
 */
#include <string.h>

#include "process.h"

enum { TABLE_ENTRIES = 64, CALLBACKS = 1024 };

static int calls;
/* All off: no profiler is there. */
static uint32_t callbacks[CALLBACKS];

static CUresult anything(void) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

static CUresult primary_context(CUcontext *out, CUdevice ordinal) {
    struct device *device = device_of(ordinal);
    if (!out || !device)
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    *out = context_primary(device);
    process_unlock();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult callback_cells(void **cells, size_t *count) {
    *cells = callbacks;
    *count = CALLBACKS;
    return CUDA_SUCCESS;
}

typedef CUresult (*entry)(void);

struct table {
    size_t bytes; /* a table begins with its size */
    entry entry[TABLE_ENTRIES];
};

static struct table plain, interface, hooks;
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill(void) {
    struct table *all[] = {&plain, &interface, &hooks};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++) {
        all[at]->bytes = sizeof *all[at];
        for (int number = 0; number < TABLE_ENTRIES; number++)
            all[at]->entry[number] = anything;
    }
    /* Entry numbers count the size as entry 0. */
    interface.entry[1] = (entry)(void (*)(void))primary_context;
    hooks.entry[1] = hooks.entry[5] = (entry)(void (*)(void))callback_cells;
}

CUresult model_cuGetExportTable(const void **out, const CUuuid *id) {
    static const unsigned char interface_id[4] = {0x6b, 0xd5, 0xfb, 0x6c}, hooks_id[4] = {0xa0, 0x94, 0x79, 0x8c};
    if (!out || !id)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&filled, fill);
    *out = memcmp(id->bytes, interface_id, 4) == 0 ? &interface : memcmp(id->bytes, hooks_id, 4) == 0 ? &hooks : &plain;
    return CUDA_SUCCESS;
}
