/* The reader of traces. A trace comes from another machine, so every line is judged. */
#define _GNU_SOURCE
#include "trace.h"

#include "card.h"
#include "limiter_under_test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_NS 3600000000000u /* one hour: no time in a trace is longer */
#define MOST_STEPS 10000000u

struct reader {
    struct trace *trace;
    uint64_t last_ns; /* when the last call returned */
    bool version_seen, end_seen;
};

static bool number(const char *word, uint64_t most, uint64_t *out) {
    char *end = NULL;
    if (!word || word[0] < '0' || word[0] > '9')
        return false;
    errno = 0;
    *out = strtoull(word, &end, 10);
    return errno == 0 && *end == '\0' && *out <= most;
}

static const char *add_step(struct trace *trace, struct step step) {
    if (trace->count == MOST_STEPS)
        return "more steps than a trace may have";
    if (trace->count == trace->room) {
        size_t room = trace->room ? 2 * trace->room : 256;
        struct step *steps = realloc(trace->steps, room * sizeof *steps);
        if (!steps)
            return "no memory left";
        trace->steps = steps;
        trace->room = room;
    }
    trace->steps[trace->count++] = step;
    return NULL;
}

/* The rest of the line after the first word, word by word; NULL for what is missing. */
#define WORDS 5
static void split(char *rest, const char *words[WORDS]) {
    char *place = NULL;
    for (int i = 0; i < WORDS; i++, rest = NULL)
        words[i] = strtok_r(rest, " \t\n", &place);
}

static const char *read_launch(struct reader *reader, const char *const words[WORDS]) {
    uint64_t at, stream, function, length;
    if (!number(words[0], LONGEST_NS, &at) || !number(words[1], CARD_STREAMS - 1, &stream) ||
        !number(words[2], UINT64_MAX, &function) || !number(words[3], LONGEST_NS, &length) || words[4])
        return "launch needs: time, stream (0 to 15), function, length";
    if (at < reader->last_ns)
        return "a call before the last one returned";
    struct trace *trace = reader->trace;
    struct step step = {STEP_LAUNCH, at - reader->last_ns, (uint32_t)stream, function, length};
    reader->last_ns = at;
    trace->longest_ns = length > trace->longest_ns ? length : trace->longest_ns;
    trace->streams = stream + 1 > trace->streams ? (uint32_t)stream + 1 : trace->streams;
    return add_step(trace, step);
}

static const char *read_synchronise(struct reader *reader, const char *const words[WORDS]) {
    uint64_t at, stream = ALL_STREAMS, returned;
    bool all = words[1] && strcmp(words[1], "all") == 0;
    if (!number(words[0], LONGEST_NS, &at) || (!all && !number(words[1], CARD_STREAMS - 1, &stream)) ||
        !number(words[2], LONGEST_NS, &returned) || words[3])
        return "synchronise needs: time, stream (0 to 15, or all), time of its return";
    if (at < reader->last_ns || returned < at)
        return "a call before the last one returned";
    struct step step = {STEP_SYNCHRONISE, at - reader->last_ns, (uint32_t)stream, 0, 0};
    reader->last_ns = returned;
    return add_step(reader->trace, step);
}

static const char *read_end(struct reader *reader, const char *const words[WORDS]) {
    uint64_t at;
    if (!number(words[0], LONGEST_NS, &at) || words[1])
        return "end needs: time";
    if (at < reader->last_ns)
        return "the end before the last call returned";
    if (reader->trace->streams == 0)
        return "a trace without a launch";
    if (at < 1000 * reader->trace->count)
        return "less than a microsecond a call, which no host can do";
    reader->trace->tail_ns = at - reader->last_ns;
    reader->trace->length_ns = at;
    reader->end_seen = true;
    return NULL;
}

static const char *read_line(struct reader *reader, char *line) {
    const char *words[WORDS];
    line[strcspn(line, "#\n")] = '\0';
    line += strspn(line, " \t");
    if (*line == '\0')
        return NULL;
    char *rest = line + strcspn(line, " \t");
    if (*rest)
        *rest++ = '\0';
    if (reader->end_seen)
        return "a line behind the end";
    if (!reader->version_seen) {
        split(rest, words);
        reader->version_seen = strcmp(line, "trace") == 0 && words[0] && strcmp(words[0], "1") == 0 && !words[1];
        return reader->version_seen ? NULL : "the first line is not: trace 1";
    }
    if (strcmp(line, "origin") == 0) {
        free(reader->trace->origin);
        reader->trace->origin = strdup(rest + strspn(rest, " \t"));
        return reader->trace->origin ? NULL : "no memory left";
    }
    split(rest, words);
    if (strcmp(line, "launch") == 0)
        return read_launch(reader, words);
    if (strcmp(line, "synchronise") == 0)
        return read_synchronise(reader, words);
    if (strcmp(line, "end") == 0)
        return read_end(reader, words);
    return "neither origin, launch, synchronise nor end";
}

bool trace_read(FILE *file, struct trace *trace, char *error, size_t error_room) {
    char *line = NULL;
    size_t room = 0, at = 0;
    const char *wrong = NULL;
    memset(trace, 0, sizeof *trace);
    struct reader reader = {.trace = trace};
    while (!wrong && getline(&line, &room, file) >= 0) {
        at++;
        wrong = read_line(&reader, line);
    }
    free(line);
    if (!wrong && !reader.end_seen)
        wrong = "the trace has no end";
    if (!wrong && !trace->origin)
        wrong = "the trace does not say its origin";
    if (wrong) {
        snprintf(error, error_room, "line %zu: %s", at, wrong);
        trace_free(trace);
    }
    return !wrong;
}

void trace_free(struct trace *trace) {
    free(trace->origin);
    free(trace->steps);
    memset(trace, 0, sizeof *trace);
}
