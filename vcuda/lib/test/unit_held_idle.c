/* What a limit takes from a container, by hand: each check prints a line if it fails; the program's answer is how many
 * did. */
#include <string.h>

#include "cuda/held_idle.h"
#include "check.h"

#define MS UINT64_C(1000000)

enum { CARD = 2 };
static struct vcuda_usage usage;
static struct vcuda_card_usage *line = &usage.card[CARD];

static void begin(void) {
    memset(&usage, 0, sizeof usage);
    usage.slot_high = 2;
    usage.slot[1].state = VCUDA_SLOT_LIVE;
}

static void waits_that_overlap_work_cost_nothing(void) {
    begin();
    usage.slot[1].inflight[CARD] = 1;
    held_idle_waited(&usage, CARD, 10 * MS, 30 * MS); /* its kernels still run */
    CHECK(line->held_idle_ns == 0);
    usage.slot[1].inflight[CARD] = 0;
    held_idle_ran(line, 5 * MS, 34 * MS);
    CHECK(line->in_flight_ns == 29 * MS);
    held_idle_waited(&usage, CARD, 10 * MS, 40 * MS);
    CHECK(line->held_idle_ns == 6 * MS);
    held_idle_ran(line, 8 * MS, 33 * MS); /* work of another stream, settled later */
    CHECK(line->in_flight_ns == 29 * MS);
    held_idle_waited(&usage, CARD, 10 * MS, 41 * MS);
    CHECK(line->held_idle_ns == 7 * MS);
    held_idle_ran(line, 36 * MS, 44 * MS); /* what was counted as held back stays so */
    CHECK(line->in_flight_ns == 32 * MS);
}

static void each_moment_counts_once(void) {
    begin();
    held_idle_waited(&usage, CARD, 10 * MS, 20 * MS);
    held_idle_waited(&usage, CARD, 12 * MS, 18 * MS); /* another thread */
    held_idle_waited(&usage, CARD, 15 * MS, 25 * MS);
    CHECK(line->held_idle_ns == 15 * MS);
    held_idle_waited(&usage, CARD, 40 * MS, 50 * MS); /* between them nobody waited */
    CHECK(line->held_idle_ns == 25 * MS);
}

static void a_process_that_has_gone_is_not_at_work(void) {
    begin();
    usage.slot[1].inflight[CARD] = 1;
    usage.slot[1].state = VCUDA_SLOT_FREE;
    usage.slot[0].inflight[CARD + 1] = 1;
    usage.slot[0].state = VCUDA_SLOT_LIVE; /* at work, on another card */
    held_idle_waited(&usage, CARD, 10 * MS, 20 * MS);
    CHECK(line->held_idle_ns == 10 * MS && usage.card[CARD + 1].held_idle_ns == 0);
}

int main(void) {
    waits_that_overlap_work_cost_nothing();
    each_moment_counts_once();
    a_process_that_has_gone_is_not_at_work();
    return checked();
}
