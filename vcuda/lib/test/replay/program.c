/* Loops and traces as a sequence of steps. */
#include "program.h"

#include "limiter_under_test.h"

struct program program_of_loop(struct loop loop) {
    return (struct program){.loop = loop,
                            .random = 0x9e3779b97f4a7c15u ^ loop.kernel_ns ^ loop.gap_ns << 20 ^ loop.seed << 44};
}

struct program program_of_trace(const struct trace *trace) {
    return (struct program){.trace = trace};
}

/* SplitMix64 (Steele, Lea and Flood, 2014): the same program is the same program in every run. */
static uint64_t random_next(uint64_t *state) {
    uint64_t mixed = *state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

/* Evenly from `middle` less `percent` to `middle` and `percent`. */
static uint64_t around(uint64_t *state, uint64_t middle, uint64_t percent) {
    uint64_t reach = middle * percent / 100;
    return middle - reach + random_next(state) % (2 * reach + 1);
}

static struct step step_of_loop(struct program *program) {
    const struct loop *loop = &program->loop;
    uint32_t stream = (uint32_t)((program->launched - (program->synchronise_next ? 1 : 0)) % loop->streams);
    if (program->synchronise_next) {
        program->synchronise_next = false;
        return (struct step){
            .kind = STEP_SYNCHRONISE, .stream = loop->synchronise_every == 1 ? stream : ALL_STREAMS, .gap_ns = 0};
    }
    program->launched++;
    program->synchronise_next = loop->synchronise_every && program->launched % loop->synchronise_every == 0;
    return (struct step){
        .kind = STEP_LAUNCH,
        .stream = stream,
        .function = 1,
        .gap_ns = loop->jittered ? around(&program->random, loop->gap_ns, 75) : loop->gap_ns,
        .length_ns = loop->jittered ? around(&program->random, loop->kernel_ns, 20) : loop->kernel_ns,
    };
}

static struct step step_of_trace(struct program *program) {
    struct step step = program->trace->steps[program->at++];
    step.gap_ns += program->pending_gap_ns;
    program->pending_gap_ns = 0;
    if (program->at == program->trace->count) {
        program->at = 0;
        program->pending_gap_ns = program->trace->tail_ns;
    }
    return step;
}

struct step program_next(struct program *program) {
    return program->trace ? step_of_trace(program) : step_of_loop(program);
}

uint32_t program_streams(const struct program *program) {
    return program->trace ? program->trace->streams : program->loop.streams;
}

uint64_t program_period_ns(const struct program *program) {
    if (program->trace)
        return program->trace->length_ns;
    return program->loop.kernel_ns > program->loop.gap_ns ? program->loop.kernel_ns : program->loop.gap_ns;
}
