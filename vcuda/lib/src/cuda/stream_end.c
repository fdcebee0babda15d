#include "cuda/stream_end.h"

#include <sched.h>
#include <stdint.h>

#include "interposer.h"
#include "page.h"

#define CU_EVENT_DISABLE_TIMING 2
#define PATIENCE_NS 1000000000u

static uint32_t asking, holding;

bool stream_end_ask(void) {
    __atomic_fetch_add(&asking, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&holding, __ATOMIC_SEQ_CST))
        return true;
    __atomic_fetch_sub(&asking, 1, __ATOMIC_SEQ_CST);
    return false;
}

void stream_end_asked(void) {
    __atomic_fetch_sub(&asking, 1, __ATOMIC_SEQ_CST);
}

/* A child of fork may find a thread counted that it does not have. */
void stream_end_wait(void) {
    uint64_t began = vcuda_now_ns();
    while (__atomic_load_n(&asking, __ATOMIC_SEQ_CST) && vcuda_now_ns() - began < PATIENCE_NS)
        sched_yield();
}

void stream_end_hold(void) {
    __atomic_fetch_add(&holding, 1, __ATOMIC_SEQ_CST);
    stream_end_wait();
}

void stream_end_release(void) {
    __atomic_fetch_sub(&holding, 1, __ATOMIC_SEQ_CST);
}

/* Relaxed: what is asked or recorded here is part of nobody's capture. */
static int relax(int mode) {
    real.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

static bool is_captured(const struct graph_stream *key) {
    int status = 0;
    CUresult asked = key->thread ? real.cuStreamIsCapturing_ptsz(key->stream, &status)
                                 : real.cuStreamIsCapturing(key->stream, &status);
    return asked != CUDA_SUCCESS || status;
}

bool stream_end_is_reached(const struct graph_stream *key) {
    int mode = relax(2);
    bool reached = !is_captured(key) && (key->thread ? real.cuStreamQuery_ptsz(key->stream)
                                                     : real.cuStreamQuery(key->stream)) == CUDA_SUCCESS;
    relax(mode);
    return reached;
}

CUevent stream_end_event(const struct graph_stream *key) {
    int mode = relax(2);
    CUevent event = NULL;
    if (is_captured(key) || real.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        event = NULL;
    if (event && real.cuEventRecord(event, key->stream) != CUDA_SUCCESS) {
        real.cuEventDestroy_v2(event);
        event = NULL;
    }
    relax(mode);
    return event;
}

bool stream_end_event_is_reached(CUevent event) {
    int mode = relax(2);
    bool reached = real.cuEventQuery(event) == CUDA_SUCCESS;
    relax(mode);
    return reached;
}

void stream_end_forget(CUevent event) {
    if (!event)
        return;
    stream_end_wait();
    real.cuEventDestroy_v2(event);
}
