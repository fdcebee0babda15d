/* Streams that wait for a word of memory, which anybody may write, or write one. */
#include "process.h"

static CUresult put(CUstream handle, struct word word) {
    NEED_CONTEXT(context);
    if (!word.at || word.at % (word.wide ? 8 : 4))
        return CUDA_ERROR_INVALID_VALUE;
    process_lock();
    struct stream *stream = stream_of(context, handle);
    bool captures = capturing(stream);
    if (!captures)
        exec_hold(stream, (struct operation){.kind = OP_WORD, .word = word});
    process_unlock();
    return captures ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult model_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, unsigned int value, unsigned int flags) {
    return put(stream, (struct word){.at = at, .value = value, .flags = flags});
}
ALIAS(cuStreamWaitValue32, cuStreamWaitValue32_v2);

CUresult model_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned int flags) {
    return put(stream, (struct word){.at = at, .value = value, .flags = flags, .wide = true});
}
ALIAS(cuStreamWaitValue64, cuStreamWaitValue64_v2);

CUresult model_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, unsigned int value, unsigned int flags) {
    (void)flags;
    return put(stream, (struct word){.at = at, .value = value, .is_write = true});
}
ALIAS(cuStreamWriteValue32, cuStreamWriteValue32_v2);

CUresult model_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned int flags) {
    (void)flags;
    return put(stream, (struct word){.at = at, .value = value, .wide = true, .is_write = true});
}
ALIAS(cuStreamWriteValue64, cuStreamWriteValue64_v2);
