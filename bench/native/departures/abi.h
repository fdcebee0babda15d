// What bench/placement/compiled.py hands to the replay, field by field.

#ifndef DEPARTURES_ABI_H
#define DEPARTURES_ABI_H

#include <cstdint>

extern "C" {

struct Shape {
    int32_t cores, cards, cpu, pad;
    uint64_t models;  // a bit for each that it allows
};

struct NodeSpec {
    int32_t cpu, memory, cards, model;
};

struct Arrival {
    double at, runs;
    int32_t shape, memory;
};

// What Python's Scorer holds after a refresh. Models are numbered in the order of their names.
struct Terms {
    const uint16_t *asked;  // step, model, bag
    const int32_t *bag_cpu;
    int32_t steps, models;
    int32_t least;  // packed cores of the smallest request
    int32_t singles;
    const int64_t *fill_weight, *fill_cores, *fill_cpu;
    const uint8_t *fill_allowed;  // model, shape
    double fill_part, roll_part;
    const double *model_price;
    double cpu_left, pack, open;
    int32_t several, pad;
    const int32_t *slot_cards, *slot_cpu;
    const uint64_t *slot_models;
    const double *rate, *missed, *always;
    double idle;
    const double *spare;  // by model
    int64_t spare_cpu;  // the last to be written: 0 if something interrupted it
};

// FGD's typical pods.
struct Typical {
    int32_t count, pad;
    const double *popularity;
    const int64_t *cpu, *cores, *cards;
    const uint64_t *models;
    const uint8_t *none;
};

struct Result {
    double area, last, begin;
    int64_t gave_up;
};

// After each arrival: the node that took it, -1 for none, the cores held, and what is free in pieces.
struct Course {
    int32_t *node;
    int64_t *held;
    double *fragments;
};

// 0 if there are no terms: then the run ends.
typedef int32_t (*Refresh)(int32_t arrival, int32_t gone, Terms *terms);
}

#endif
