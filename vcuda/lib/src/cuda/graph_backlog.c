#include "cuda/graph_backlog.h"

#include <stddef.h>

#define ENDLESS (INT64_MAX / 4)

static __thread char this_thread __attribute__((tls_model("initial-exec")));

struct graph_stream graph_stream_of(CUstream stream, uint64_t context, bool per_thread) {
    uintptr_t handle = (uintptr_t)stream; /* 1: the legacy null stream, 2: the thread's own */
    bool is_own = handle == 2 || (handle == 0 && per_thread);
    return (struct graph_stream){.stream = is_own        ? (CUstream)2
                                           : handle == 1 ? NULL
                                                         : stream,
                                 .context = context,
                                 .thread = is_own ? &this_thread : NULL};
}

bool graph_stream_is_same(const struct graph_stream *left, const struct graph_stream *right) {
    return left->stream == right->stream && left->thread == right->thread &&
           ((uintptr_t)left->stream > 2 || left->context == right->context);
}

bool graph_stream_is_another_threads(const struct graph_stream *stream) {
    return stream->thread && stream->thread != &this_thread;
}

struct graph_record *graph_backlog_find(struct graph_backlog *backlog, const struct graph_stream *key) {
    for (struct graph_record *record = backlog->records; record; record = record->next)
        if (record->is_used && !record->is_gone && graph_stream_is_same(&record->key, key))
            return record;
    return NULL;
}

struct graph_record *graph_backlog_find_or_use(struct graph_backlog *backlog, const struct graph_stream *key,
                                               struct graph_record **spare) {
    struct graph_record *record = graph_backlog_find(backlog, key);
    if (record)
        return record;
    for (record = backlog->records; record && record->is_used; record = record->next)
        ;
    if (!record && (record = *spare)) {
        *spare = NULL;
        record->next = backlog->records;
        backlog->records = record;
    }
    if (record) {
        struct graph_record *next = record->next;
        *record = (struct graph_record){.next = next, .key = *key, .is_used = true};
    }
    return record;
}

void graph_backlog_finish(struct graph_backlog *backlog, struct graph_record *record) {
    backlog->done += record->now;
    record->is_used = false;
}

void graph_backlog_clear(struct graph_backlog *backlog) {
    for (struct graph_record *record = backlog->records; record; record = record->next)
        record->is_used = false;
    backlog->done = 0;
}

static int64_t sum(const struct graph_backlog *backlog) {
    int64_t bytes = backlog->done;
    for (const struct graph_record *record = backlog->records; record; record = record->next)
        bytes += record->is_used ? record->most : 0;
    return bytes;
}

uint64_t graph_backlog_needs(const struct graph_backlog *backlog) {
    int64_t bytes = sum(backlog);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

bool graph_backlog_enter(struct graph_backlog *backlog, struct graph_record *record, const struct graph_step *step,
                         uint64_t charged, uint64_t *missing) {
    int64_t others = sum(backlog) - (record ? record->most : 0), peak = ENDLESS;
    if (record && step->peak < ENDLESS)
        peak = record->now - (int64_t)step->freed_before + (int64_t)step->peak;
    int64_t most = record && record->most > peak ? record->most : peak, need = others + most;
    bool fits = need <= 0 || (uint64_t)need <= charged;
    *missing = fits ? 0 : (uint64_t)need - charged;
    if (fits) {
        record->most = most;
        record->now += step->change - (int64_t)step->freed_before;
        record->most = record->now > most ? record->now : most;
    } else if (record && !record->now && !record->most) {
        record->is_used = false;
    }
    return fits;
}
