/* Bytes that the unfinished launches of a device's graphs can hold at once. Arithmetic alone: no lock, no call of the
 * driver; a graph_pool has one and locks it.
 *
 * Work of one stream runs in its order, so for each stream the greatest sum on the way through its work is kept.
 * Streams are taken to run in any order, so the sum over them is never too low; where they wait for each other it is
 * too high. */
#ifndef VCUDA_GRAPH_BACKLOG_H
#define VCUDA_GRAPH_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"

/* A stream as the calling thread names it. */
struct graph_stream {
    CUstream stream;
    uint64_t context;   /* id */
    const void *thread; /* whose per-thread null stream it is, else NULL */
};

/* The stream as a record's key. */
struct graph_stream graph_stream_of(CUstream stream, uint64_t context, bool per_thread);
bool graph_stream_is_same(const struct graph_stream *left, const struct graph_stream *right);

/* Is it the own null stream of a thread that is not the calling one? */
bool graph_stream_is_another_threads(const struct graph_stream *stream);

/* What a launch does, in the order of its stream. */
struct graph_step {
    uint64_t freed_before; /* bytes that it frees before anything else: AUTO_FREE_ON_LAUNCH */
    uint64_t peak;         /* bytes that its own allocations can hold at once */
    int64_t change;        /* by how much more is live behind it than before it, freed_before left aside */
};

/* A stream's unfinished work. Never freed, only used again: threads may be looking at it. */
struct graph_record {
    struct graph_record *next;
    struct graph_stream key;
    bool is_used, is_gone; /* its stream was destroyed */
    CUevent end;           /* behind all of it, where its stream was destroyed before it ended; or NULL */
    int64_t now, most;     /* live behind all of it, and the greatest sum on the way; relative to before it */
};

struct graph_backlog {
    int64_t done; /* bytes live behind all work that is known to have ended */
    struct graph_record *records;
};

/* The record of a stream that is not destroyed, or NULL. */
struct graph_record *graph_backlog_find(struct graph_backlog *backlog, const struct graph_stream *key);

/* The same, or one that was not in use, for this stream from now on: *spare if there is none, which then becomes NULL.
 */
struct graph_record *graph_backlog_find_or_use(struct graph_backlog *backlog, const struct graph_stream *key,
                                               struct graph_record **spare);

/* The record's work has ended. */
void graph_backlog_finish(struct graph_backlog *backlog, struct graph_record *record);

/* All work has ended, and nothing of it is left. */
void graph_backlog_clear(struct graph_backlog *backlog);

/* What may be held at once. */
uint64_t graph_backlog_needs(const struct graph_backlog *backlog);

/* Put a launch behind the record's work if `charged` bytes suffice for all of it; else *missing is how many more it
 * takes, and nothing has changed. `record` NULL: nothing suffices. */
bool graph_backlog_enter(struct graph_backlog *backlog, struct graph_record *record, const struct graph_step *step,
                         uint64_t charged, uint64_t *missing);

#endif
