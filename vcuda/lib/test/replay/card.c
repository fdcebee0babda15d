/* Streams in order, and the union of what they run. */
#include "card.h"

#include <stdlib.h>
#include <string.h>

struct card_settings card_defaults(void) {
    return (struct card_settings){
        .overlap = ONE_AT_A_TIME,
        /* Measured on an H100 and an H200 with driver 580: two records in a row are 1.25 us apart, and a kernel between
         * two records on an idle stream seems 4.2 us longer than it is and than half of the launch's call takes. */
        .launch_latency_ns = 4200,
        .record_ns = 1250,
        .stamp_ns = 32, /* the steps of all times that were read there; documented is about 0.5 us */
        /* Measured on an H100: a pair of events round a kernel that waits takes 2.2 to 2.3 us more than the kernel, and
         * 1.28 with nothing between; host functions run 34 to 116 us after their call. */
        .gap_ns = 950,
        .host_function_ns = 50000,
        .resume_ns = 5000,
    };
}

void card_begin(struct card *card, struct card_settings settings) {
    memset(card, 0, sizeof *card);
    card->settings = settings;
}

void card_end(struct card *card) {
    free(card->busy);
    card->busy = NULL;
}

static uint64_t later(uint64_t left, uint64_t right) {
    return left > right ? left : right;
}

static void *grown(void *old, size_t bytes) {
    void *room = realloc(old, bytes);
    if (!room)
        abort();
    return room;
}

/* Add [from, to) to the union. New intervals lie near the end, so the search goes backwards. */
static void add_busy(struct card *card, uint64_t from, uint64_t to) {
    if (from == to)
        return;
    if (card->busy_count + 1 > card->busy_room) {
        card->busy_room = card->busy_room ? 2 * card->busy_room : 1024;
        card->busy = grown(card->busy, card->busy_room * sizeof *card->busy);
    }
    size_t after = card->busy_count; /* the first interval wholly behind the new one */
    while (after > 0 && card->busy[after - 1].from > to)
        after--;
    size_t first = after; /* the first that touches it */
    while (first > 0 && card->busy[first - 1].to >= from)
        first--;
    struct busy joined = {from, to};
    for (size_t i = first; i < after; i++) {
        joined.from = card->busy[i].from < joined.from ? card->busy[i].from : joined.from;
        joined.to = later(card->busy[i].to, joined.to);
        card->busy_total_ns -= card->busy[i].to - card->busy[i].from;
    }
    card->busy_total_ns += joined.to - joined.from;
    memmove(card->busy + first + 1, card->busy + after, (card->busy_count - after) * sizeof *card->busy);
    card->busy[first] = joined;
    card->busy_count = card->busy_count - (after - first) + 1;
}

uint64_t card_takes_launch_at(const struct card *card, uint32_t stream) {
    const struct stream *of = &card->stream[stream];
    return of->submitted < CARD_QUEUE ? 0 : of->ends[of->submitted % CARD_QUEUE];
}

void card_submit_kernel(struct card *card, uint32_t stream, uint64_t length_ns, uint64_t now) {
    struct stream *of = &card->stream[stream];
    uint64_t arrives = now + card->settings.launch_latency_ns, begin = later(arrives, of->idle_at);
    if (card->settings.overlap == ONE_AT_A_TIME)
        begin = later(begin, card->idle_at);
    uint64_t end = begin + (arrives < of->idle_at ? card->settings.gap_ns : 0) + length_ns;
    of->idle_at = end;
    of->ends[of->submitted++ % CARD_QUEUE] = end;
    card->idle_at = later(card->idle_at, end);
    card->kernels_ns += length_ns;
    add_busy(card, begin, end);
}

uint64_t card_submit_event(struct card *card, uint32_t stream, uint64_t now) {
    struct stream *of = &card->stream[stream];
    uint64_t begin = later(now, of->idle_at);
    of->idle_at = begin + card->settings.record_ns;
    card->idle_at = later(card->idle_at, of->idle_at);
    add_busy(card, begin, of->idle_at);
    return of->idle_at;
}

uint64_t card_submit_host_function(struct card *card, uint32_t stream, uint64_t now, uint64_t ready) {
    struct stream *of = &card->stream[stream];
    uint64_t returns = later(later(now, of->idle_at) + card->settings.host_function_ns, ready);
    of->idle_at = returns + card->settings.resume_ns;
    return returns;
}

uint64_t card_stamp(const struct card *card, uint64_t done_at) {
    return done_at - done_at % card->settings.stamp_ns;
}

uint64_t card_walk_to(const struct card *card, struct walk *walk, uint64_t until) {
    for (; walk->passed < card->busy_count && card->busy[walk->passed].to <= until; walk->passed++)
        walk->passed_sum += card->busy[walk->passed].to - card->busy[walk->passed].from;
    bool inside = walk->passed < card->busy_count && card->busy[walk->passed].from < until;
    return walk->passed_sum + (inside ? until - card->busy[walk->passed].from : 0);
}

uint64_t card_busy_before(const struct card *card, uint64_t until) {
    struct walk walk = {0, 0};
    return card_walk_to(card, &walk, until);
}

/* The busiest window can be moved until it begins where an interval begins or ends where one ends: both are tried. */
uint64_t card_busiest_window(const struct card *card, uint64_t window_ns) {
    uint64_t most = 0;
    struct walk begin = {0, 0}, end = {0, 0}, begin_of_last = {0, 0}, end_of_last = {0, 0};
    for (size_t i = 0; i < card->busy_count; i++) {
        uint64_t from = card->busy[i].from, to = card->busy[i].to, since = to > window_ns ? to - window_ns : 0;
        most = later(most, card_walk_to(card, &end, from + window_ns) - card_walk_to(card, &begin, from));
        most = later(most, card_walk_to(card, &end_of_last, to) - card_walk_to(card, &begin_of_last, since));
    }
    return most;
}
