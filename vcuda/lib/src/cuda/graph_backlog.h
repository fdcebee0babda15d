/* Bytes that the unfinished launches of a device's graphs can hold at once. Arithmetic only: no lock and no driver
 * call; each graph_pool has a backlog and locks it.
 *
 * Work of one stream runs in order, so the record of a stream keeps the greatest sum along its work. Streams are
 * assumed to run in any order, so the sum over streams is never too low; it is too high where streams wait for each
 * other. */
#ifndef VCUDA_GRAPH_BACKLOG_H
#define VCUDA_GRAPH_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

/* A stream as the calling thread names it. */
struct graph_stream {
    CUstream stream;
    uint64_t context;   /* id */
    const void *thread; /* the thread whose per-thread null stream it is, else NULL */
};

/* The stream in the form used as a record's key. */
struct graph_stream graph_stream_of(CUstream stream, uint64_t context, bool per_thread);
bool graph_stream_is_same(const struct graph_stream *left, const struct graph_stream *right);

/* True if it is the per-thread null stream of another thread. */
bool graph_stream_is_another_threads(const struct graph_stream *stream);

/* The effect of a launch on memory, in the order of its stream. */
struct graph_step {
    uint64_t freed_before; /* bytes that it frees before anything else: AUTO_FREE_ON_LAUNCH */
    uint64_t peak;         /* bytes that its own allocations can hold at once */
    int64_t change;        /* change of live bytes from before the launch to after it, without freed_before */
};

/* A stream's unfinished work. Never freed but reused, because other threads may be reading it. */
struct graph_record {
    struct graph_record *next;
    struct graph_stream key;
    bool is_used, is_gone; /* its stream was destroyed */
    CUevent end;           /* event after all of it, if its stream was destroyed before it ended; else NULL */
    int64_t now, most;     /* live bytes after all of it, and the greatest sum along it; relative to before it */
};

struct graph_backlog {
    int64_t done; /* bytes live after all work that is known to have ended */
    struct graph_record *records;
};

/* The record of a stream that is not destroyed, or NULL. */
struct graph_record *graph_backlog_find(struct graph_backlog *backlog, const struct graph_stream *key);

/* Like graph_backlog_find(), but if there is none, reuse a free record for this stream, or else *spare, which then
 * becomes NULL. */
struct graph_record *graph_backlog_find_or_use(struct graph_backlog *backlog, const struct graph_stream *key,
                                               struct graph_record **spare);

/* The record's work has ended. */
void graph_backlog_finish(struct graph_backlog *backlog, struct graph_record *record);

/* All work has ended and no allocation of it is left. */
void graph_backlog_clear(struct graph_backlog *backlog);

/* Bytes that may be held at once. */
uint64_t graph_backlog_needs(const struct graph_backlog *backlog);

/* Append a launch to the record's work if `charged` bytes suffice for all of it. Otherwise returns false, sets *missing
 * to the additional bytes needed, and changes nothing. `record` NULL: never suffices. */
bool graph_backlog_enter(struct graph_backlog *backlog, struct graph_record *record, const struct graph_step *step,
                         uint64_t charged, uint64_t *missing);

#endif
