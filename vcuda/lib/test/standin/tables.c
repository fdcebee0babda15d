/*
 * Export tables: the driver's undocumented side door. They are opaque here: every id gets the same table, whose
 * entries succeed and do nothing. That is enough for whatever only passes tables on. It is not enough for the CUDA
 * runtime, which asks them for things that no document describes, among them a proof that the driver is NVIDIA's
 * own: it starts on the stand-in, looks up all its functions, reads the cards, and then gives up.
 */
#include "process.h"

enum { TABLE_ENTRIES = 64 };

typedef CUresult (*entry)(void);

static CUresult nothing(void) {
    return CUDA_SUCCESS;
}

static struct {
    size_t bytes; /* a table begins with its size */
    entry entry[TABLE_ENTRIES];
} table;
static pthread_once_t filled = PTHREAD_ONCE_INIT;

static void fill(void) {
    table.bytes = sizeof table;
    for (int at = 0; at < TABLE_ENTRIES; at++)
        table.entry[at] = nothing;
}

CUresult model_cuGetExportTable(const void **out, const CUuuid *id) {
    if (!out || !id)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&filled, fill);
    *out = &table;
    return CUDA_SUCCESS;
}
