/* By how much work is divided once the host is silent: each check prints a line if it fails; the program's answer is
 * how many did. */

#include "cuda/sharers.h"
#include "token_bucket.h"
#include "check.h"

#define MS UINT64_C(1000000)
#define LOOK (100 * MS)
#define LOOKS_LATELY 30 /* three seconds of them */

enum { CARD = 1, LOOKS = 600, LEAST_Q8 = 435, MOST_Q8 = 512 };

static uint32_t said[LOOKS];

static struct vcuda_limits_view view_at(uint32_t q8, uint64_t now) {
    struct vcuda_limits_view view = {.card_count = CARD + 1, .heartbeat_ns = now};
    view.card[CARD].co_active_q8 = q8;
    return view;
}

static uint32_t greatest(int from, int to) {
    uint32_t found = 0;
    for (int at = from < 0 ? 0 : from; at <= to; at++)
        found = said[at] > found ? said[at] : found;
    return found;
}

/* Its factors wobble, and it may fall silent after any of them: work that took twice its time shared the card with as
 * many as the host has just said there can be, not with as many as it happened to say last. */
static void a_host_may_fall_silent_after_any_word(void) {
    uint32_t dice = 7;
    uint64_t now = 100 * LOOK;
    for (int at = 0; at < LOOKS; at++, now += LOOK) {
        dice = dice * 1664525 + 1013904223;
        said[at] = LEAST_Q8 + (dice >> 16) % (at % 37 ? 60 : MOST_Q8 - LEAST_Q8 + 1);
        struct vcuda_limits_view view = view_at(said[at], now);
        sharers_look(&view, CARD, now);
        uint32_t divided = sharers_during(&view, CARD, now + BUCKET_HEARTBEAT_FRESH_NS, 9 * MS, 3 * MS);
        CHECK(divided >= greatest(at - LOOKS_LATELY + 1, at), "look %d: %u", at, divided);
        CHECK(divided <= greatest(at - 2 * LOOKS_LATELY, at), "look %d: %u", at, divided);
    }
}

static void what_was_said_long_ago_is_forgotten(void) {
    uint64_t now = 10000 * LOOK;
    struct vcuda_limits_view view = view_at(300, now);
    sharers_look(&view, CARD, now);
    uint32_t divided = sharers_during(&view, CARD, now + BUCKET_HEARTBEAT_FRESH_NS, 9 * MS, 3 * MS);
    CHECK(divided == 300, "%u", divided);
}

/* Three others met in one millisecond, in a mean of less than one: hosts since minor 10 say so. */
static void the_peak_is_what_the_host_counted_or_the_greatest_mean(void) {
    uint64_t now = 20000 * LOOK;
    struct vcuda_limits_view view = view_at(400, now);
    sharers_look(&view, CARD, now);
    CHECK(sharers_peak(&view, CARD, now) == 400);
    view.card[CARD].others_most = 3;
    CHECK(sharers_peak(&view, CARD, now) == 4 * 256);
    view.card[CARD].others_most = UINT32_MAX;
    CHECK(sharers_peak(&view, CARD, now) == 256 * 256);
    view.card[CARD].co_active_q8 = 256; /* it is alone now */
    CHECK(sharers_peak(&view, CARD, now) == 400);
}

int main(void) {
    the_peak_is_what_the_host_counted_or_the_greatest_mean();
    a_host_may_fall_silent_after_any_word();
    what_was_said_long_ago_is_forgotten();
    return checked();
}
