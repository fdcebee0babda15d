/* The credit of a container on one card, in nanoseconds of GPU time.
 *
 * Credit comes in at the container's share of the wall clock, is capped at the burst, and is spent on work: an
 * estimate before it runs, the rest when it is measured. Whoever needs credit first brings it up to date. The first
 * part of this file is arithmetic; the second applies it to the words of the usage page, lock-free: a process killed
 * between any two steps costs its container at most the credit that it was bringing in.
 */
#ifndef VCUDA_TOKEN_BUCKET_H
#define VCUDA_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

#define BUCKET_WHOLE_Q8 (100u * 256u)
#define BUCKET_FIRST_GUESS_NS 50000u          /* what a piece of work costs that was never measured */
#define BUCKET_NAP_LEAST_NS 70000u            /* no sleep is shorter */
#define BUCKET_NAP_MOST_NS 5000000u           /* so that a change of limits is seen */
#define BUCKET_HEARTBEAT_FRESH_NS 5000000000u /* the host writes one a second */
#define BUCKET_HEARTBEAT_LOST_NS 60000000000u

/* ---- arithmetic ----------------------------------------------------------------------------------------------------
 */

/* Does the host, who must be there, say which share is in force? It does while protected and best-effort containers are
 * on the card together. */
bool bucket_is_granted(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The share in force, percent x 256, at least 1: the granted one; else the ceiling while the limits are elastic and the
 * host, who must be there, sees no other container at work on the card; else the limit. */
uint32_t bucket_share(const struct vcuda_limits_view *view, int card, uint64_t now);

/* Credit for that much wall time, and the wall time that brings that much credit. */
uint64_t bucket_income(uint64_t wall_ns, uint32_t share_q8);
uint64_t bucket_wall(uint64_t credit_ns, uint32_t share_q8);

/* What idling may save up: the limits' burst, but no more than a tenth of a window's worth, so that a small share stays
 * small and a lowered one is low at once. */
uint64_t bucket_burst(const struct vcuda_card_limits *limits, uint32_t share_q8);

/* The same where it is known that the window has room for it: four tenths of a window's worth, so that a program whose
 * need lies within its share may take it in bursts. */
uint64_t bucket_window_burst(const struct vcuda_card_limits *limits, uint32_t share_q8);

/* Credit after `wall_ns` more: never above the burst, never below minus the debt. */
int64_t bucket_refilled(int64_t credit, uint64_t wall_ns, uint32_t share_q8, uint64_t burst_ns, uint64_t debt_ns);

/* The deepest debt: max(the limits' own, 1.5 x the longest span), at most 2 s (or the limits' own, if that is more).
 * Shorter, and a loop of long kernels would get more than its share. */
uint64_t bucket_debt(uint64_t debt_ns, uint64_t longest_ns);

/* A wait longer than this lets one launch through: work of other processes or cards may wait for it. */
uint64_t bucket_guard(uint64_t debt_ns, uint32_t share_q8);

/* What a thread takes from the container's word at a time: a millisecond of its share, within 50 us .. 1 ms. */
uint64_t bucket_slice(uint32_t share_q8);

/* How much work may be queued ahead of the card. */
uint64_t bucket_ahead(uint64_t longest_ns);

/* Who has waited long is served before who comes now: how far below zero credit may be for it, at most an eighth of the
 * deepest debt. */
uint64_t bucket_seniority(uint64_t waited_ns, uint32_t share_q8, uint64_t debt_ns);

/* How long to sleep if `left_ns` are left to wait. */
uint64_t bucket_nap(uint64_t left_ns);

/* GPU time used in `elapsed_ns`, during which the card was divided by `sharers_q8` / 256. */
uint64_t bucket_used(uint64_t elapsed_ns, uint32_t sharers_q8, uint32_t gain_q8);

/* By how much the host's view divides measured time, x 256: 256 when there is no host any more to say so, so that a
 * factor left behind by a dead host loosens no limit for ever. */
uint32_t bucket_sharers(const struct vcuda_limits_view *view, int card, uint64_t now);

/* By how much others stretched work that took `elapsed_ns` instead of `expected_ns`, x 256: 256 to `most_q8`. */
uint32_t bucket_stretch(uint64_t elapsed_ns, uint64_t expected_ns, uint32_t most_q8);

/* Has the host been silent for so long that what it said last was said of a moment that is gone? */
bool bucket_is_silent(const struct vcuda_limits_view *view, uint64_t now);

/* ---- the words of the usage page
 * ------------------------------------------------------------------------------------- */

/* Bring credit up to date; returns it. `burst_ns`: the most that may be saved up. */
int64_t bucket_refill(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint32_t share_q8,
                      uint64_t burst_ns, uint64_t now);

/* Spend `amount` if there is more credit than `floor`: long work runs when its turn comes and is paid off
 * afterwards. */
bool bucket_take(struct vcuda_card_usage *usage, uint64_t amount, int64_t floor);

/* Spend without asking. */
void bucket_force(struct vcuda_card_usage *usage, uint64_t amount);

/* Work was measured: it cost `used` and had paid `paid`. Use beyond the deepest debt is forgiven, and counted. */
void bucket_settle(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint64_t used,
                   uint64_t paid);

/* The same for who asks how busy the container is and has not asked before: the last half to whole second of work. A
 * window that is older than BUCKET_WINDOW_MOST_NS says that there was none. */
#define BUCKET_WINDOW_MOST_NS 2000000000u
void bucket_note_window(struct vcuda_card_usage *usage, uint64_t used, uint64_t now);

/* A span took this long. */
void bucket_note_longest(struct vcuda_card_usage *usage, uint64_t ns);

#endif
