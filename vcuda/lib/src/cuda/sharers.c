#include "cuda/sharers.h"
#include "token_bucket.h"

#define LATELY_NS 3e9
#define PEAK_MOST 255u

/* What the host said over the last seconds, for when it falls silent. */
static struct {
    double inverse;      /* of the harmonic mean of its factors */
    uint64_t at;         /* when it was heard last */
    uint32_t most_q8[2]; /* the greatest factor since `since`, and over as long before */
    uint64_t since;
} told[VCUDA_MAX_CARDS];

void sharers_look(const struct vcuda_limits_view *view, int card, uint64_t now) {
    if (!view || (uint32_t)card >= view->card_count || bucket_is_silent(view, now))
        return;
    uint32_t q8 = bucket_sharers(view, card, now);
    double weight = (double)(now - told[card].at) / LATELY_NS;
    if (!told[card].at || weight > 1)
        weight = 1;
    told[card].inverse += weight * (256.0 / q8 - told[card].inverse);
    told[card].at = now;
    uint64_t passed = now - told[card].since;
    if ((double)passed >= LATELY_NS) {
        told[card].most_q8[1] = (double)passed < 2 * LATELY_NS ? told[card].most_q8[0] : 0;
        told[card].most_q8[0] = 0;
        told[card].since = now;
    }
    if (q8 > told[card].most_q8[0])
        told[card].most_q8[0] = q8;
}

uint32_t sharers_most(int card) {
    const uint32_t *most = told[card].most_q8;
    return most[0] > most[1] ? most[0] : most[1];
}

/* Does nothing but what the host said some seconds ago tell of others? Its factor was of a tenth of a second. */
static bool is_left_to_itself(const struct vcuda_limits_view *view, int card, uint64_t now) {
    return bucket_sharers(view, card, now) > 256 && told[card].inverse > 0 && bucket_is_silent(view, now);
}

uint32_t sharers_now(const struct vcuda_limits_view *view, int card, uint64_t now) {
    uint32_t q8 = bucket_sharers(view, card, now);
    if (is_left_to_itself(view, card, now))
        q8 = (uint32_t)(256 / told[card].inverse);
    return q8;
}

uint32_t sharers_peak(const struct vcuda_limits_view *view, int card, uint64_t now) {
    uint32_t others = view->card[card].others_most, most = sharers_most(card), q8 = sharers_now(view, card, now);
    uint32_t peak = 256 + 256 * (others < PEAK_MOST ? others : PEAK_MOST);
    most = most > q8 ? most : q8;
    return q8 > 256 && peak > most ? peak : most;
}

uint32_t sharers_during(const struct vcuda_limits_view *view, int card, uint64_t now, uint64_t elapsed_ns,
                        uint64_t expected_ns) {
    if (!is_left_to_itself(view, card, now))
        return sharers_now(view, card, now);
    return bucket_stretch(elapsed_ns, expected_ns, sharers_most(card));
}
