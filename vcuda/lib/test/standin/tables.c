/*
 * Export tables: the driver's undocumented side door. Two are known here as far as the CUDA runtime needs them to
 * start: one gives it a card's primary context, another two scratch areas that tools would use. Every other id gets a
 * table of entries that succeed and do nothing, which is enough for whatever only passes tables on.
 *
 * The runtime then asks the table PROOF whether this is NVIDIA's own driver: three numbers, each to be answered with
 * 16 bytes that only NVIDIA's code computes. The stand-in is not that driver and does not pretend to be: the answer
 * stays as it was, and the runtime stops with cudaErrorSoftwareValidityNotEstablished (103).
 */
#include <string.h>

#include "process.h"
#include "trace.h"

enum { TABLE_ENTRIES = 64, SCRATCH_BYTES = 8192, SCRATCH_WORDS = 1024, MARK_BYTES = 14 };

typedef CUresult (*entry)(void);

struct table {
    size_t bytes; /* a table begins with its size */
    entry entry[TABLE_ENTRIES];
};

static const unsigned char RUNTIME[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                          0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
static const unsigned char TOOLS[16] = {0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74,
                                        0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66};
static const unsigned char PROOF[16] = {0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b,
                                        0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1, 0xf2};

static struct table opaque, runtime, tools, proof;
static pthread_once_t filled = PTHREAD_ONCE_INIT;

CUresult model_cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice ordinal);

static CUresult nothing(void) {
    return CUDA_SUCCESS;
}

static CUresult primary_context(CUcontext *out, CUdevice device) {
    trace("primary context of %d", device);
    return model_cuDevicePrimaryCtxRetain(out, device);
}

static CUresult scratch(void **out, size_t *words) {
    static _Alignas(64) char area[SCRATCH_BYTES];
    *out = area;
    *words = SCRATCH_WORDS;
    return CUDA_SUCCESS;
}

static CUresult marks(void **out, size_t *bytes) {
    static _Alignas(64) char area[64];
    *out = area;
    *bytes = MARK_BYTES;
    return CUDA_SUCCESS;
}

static CUresult prove(unsigned version, unsigned long long seconds, unsigned long long *answer) {
    (void)seconds;
    (void)answer;
    trace("proof of %u", version);
    return CUDA_SUCCESS;
}

static void fill(void) {
    struct table *const all[] = {&opaque, &runtime, &tools, &proof};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        all[i]->bytes = sizeof *all[i];
        for (int at = 0; at < TABLE_ENTRIES; at++)
            all[i]->entry[at] = nothing;
    }
    runtime.entry[1] = (entry)(void *)primary_context;
    tools.entry[1] = (entry)(void *)scratch;
    tools.entry[5] = (entry)(void *)marks;
    proof.entry[0] = (entry)(void *)prove;
}

CUresult model_cuGetExportTable(const void **out, const CUuuid *id) {
    if (!out || !id)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_once(&filled, fill);
    const unsigned char *b = (const unsigned char *)id;
    trace("table %02x%02x%02x%02x", b[0], b[1], b[2], b[3]);
    *out = !memcmp(id, RUNTIME, 16) ? &runtime
           : !memcmp(id, TOOLS, 16) ? &tools
           : !memcmp(id, PROOF, 16) ? &proof
                                    : &opaque;
    return CUDA_SUCCESS;
}
