/* The modelled program: what it launches, and how long its host works between two calls. */
#ifndef VCUDA_REPLAY_PROGRAM_H
#define VCUDA_REPLAY_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum step_kind { STEP_LAUNCH, STEP_SYNCHRONISE };

/* One call of the program into the driver. */
struct step {
    enum step_kind kind;
    uint64_t gap_ns; /* host time since the last call returned */
    uint32_t stream; /* ALL_STREAMS: the context */
    uint64_t function;
    uint64_t length_ns; /* of the kernel */
};

/* A loop that launches one kernel on its streams in turn. */
struct loop {
    uint64_t kernel_ns, gap_ns;
    bool jittered; /* gaps vary evenly by 75 % and kernels by 20 % to both sides */
    uint32_t streams;
    uint32_t synchronise_every; /* launches: 0 never; 1 cuStreamSynchronize, more cuCtxSynchronize */
    uint64_t seed;              /* of what is jittered */
};

/* Steps of a recorded program, played again and again; trace.h reads them. */
struct trace {
    char *origin;
    struct step *steps;
    size_t count, room;
    uint64_t tail_ns; /* host time from the last call to the first of the next round */
    uint64_t longest_ns, length_ns;
    uint32_t streams;
};

/* Either of both, with its place. */
struct program {
    const struct trace *trace; /* NULL: the loop */
    struct loop loop;
    uint64_t random;
    uint64_t launched;
    bool synchronise_next;
    size_t at;
    uint64_t pending_gap_ns;
};

struct program program_of_loop(struct loop loop);
struct program program_of_trace(const struct trace *trace);
struct step program_next(struct program *program);
uint32_t program_streams(const struct program *program);

/* How long one round takes at least: the longer of kernel and gap of a loop, the recording's length of a trace. */
uint64_t program_period_ns(const struct program *program);

#endif
