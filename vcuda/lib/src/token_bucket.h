/* The core-time credit of a container on one card, in nanoseconds of GPU time.
 *
 * Credit accrues at the container's share of wall time, is capped at the burst, and is spent on work: an estimate
 * before the work runs, the difference once it is measured. A thread that needs credit first refills it. The first part
 * of this file is arithmetic; the second applies it to the words of the usage page. Lock-free: a process killed between
 * any two steps costs its container at most the credit of one refill. */
#ifndef VCUDA_TOKEN_BUCKET_H
#define VCUDA_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

#define BUCKET_WHOLE_Q8 (100u * 256u)
#define BUCKET_FIRST_GUESS_NS 50000u          /* cost of work whose kind was never measured */
#define BUCKET_NAP_LEAST_NS 70000u            /* the shortest sleep */
#define BUCKET_NAP_MOST_NS 5000000u           /* the longest sleep, so that a change of limits is noticed */
#define BUCKET_HEARTBEAT_FRESH_NS 5000000000u /* the host writes a heartbeat every second */
#define BUCKET_HEARTBEAT_LOST_NS 60000000000u

/* ---- arithmetic ----------------------------------------------------------------------------------------------------
 */

/* True if a live host publishes the share in force. It does while protected and best-effort containers share the card.
 */
bool bucket_is_granted(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The share in force, percent x 256, at least 1. The granted share if there is one. Else the ceiling, while the limits
 * are elastic and a live host reports no other container at work on the card. Else the limit. */
uint32_t bucket_share(const struct vcuda_limits_view *view, int card, uint64_t now);

/* The credit earned in `wall_ns`, and the wall time needed to earn `credit_ns`. */
uint64_t bucket_income(uint64_t wall_ns, uint32_t share_q8);
uint64_t bucket_wall(uint64_t credit_ns, uint32_t share_q8);

/* The most credit that idling may save up: the limits' burst, but at most a tenth of a window's worth, so that small
 * and lowered shares take effect at once. */
uint64_t bucket_burst(const struct vcuda_card_limits *limits, uint32_t share_q8);

/* The cap where the window is known to have room: four tenths of a window's worth, so that a program whose average use
 * is within its share may work in bursts. */
uint64_t bucket_window_burst(const struct vcuda_card_limits *limits, uint32_t share_q8);

/* Credit after another `wall_ns`: at most the burst, at least minus the debt. */
int64_t bucket_refilled(int64_t credit, uint64_t wall_ns, uint32_t share_q8, uint64_t burst_ns, uint64_t debt_ns);

/* The deepest debt: max(the limits' own, 1.5 x the longest span), at most 2 s (or the limits' own, if that is more).
 * With a smaller one a loop of long kernels would get more than its share. */
uint64_t bucket_debt(uint64_t debt_ns, uint64_t longest_ns);

/* After a wait longer than this one launch goes ahead: work of other processes or cards may depend on it. */
uint64_t bucket_guard(uint64_t debt_ns, uint32_t share_q8);

/* Credit that a thread takes from the container's word at a time: a millisecond of its share, within 50 us .. 1 ms. */
uint64_t bucket_slice(uint32_t share_q8);

/* How much work may be queued ahead of the card. */
uint64_t bucket_ahead(uint64_t longest_ns);

/* Threads that have waited long are served first: how far below zero credit may be for one that has waited `waited_ns`,
 * at most an eighth of the deepest debt. */
uint64_t bucket_seniority(uint64_t waited_ns, uint32_t share_q8, uint64_t debt_ns);

/* How long to sleep when `left_ns` remain to wait. */
uint64_t bucket_nap(uint64_t left_ns);

/* GPU time used in `elapsed_ns`, during which the card was divided by `sharers_q8` / 256. */
uint64_t bucket_used(uint64_t elapsed_ns, uint32_t sharers_q8, uint32_t gain_q8);

/* The divisor for measured time that the host publishes, x 256. It is 256 if the host is gone, so that a factor left
 * behind by a dead host does not loosen a limit for ever. */
uint32_t bucket_sharers(const struct vcuda_limits_view *view, int card, uint64_t now);

/* By how much other containers stretched work that took `elapsed_ns` instead of `expected_ns`, x 256: 256 to `most_q8`.
 */
uint32_t bucket_stretch(uint64_t elapsed_ns, uint64_t expected_ns, uint32_t most_q8);

/* True if the host has been silent for so long that its last published figures are out of date. */
bool bucket_is_silent(const struct vcuda_limits_view *view, uint64_t now);

/* ---- the words of the usage page
 * ------------------------------------------------------------------------------------- */

/* Refill the credit up to `now` and return it. `burst_ns`: the cap. */
int64_t bucket_refill(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint32_t share_q8,
                      uint64_t burst_ns, uint64_t now);

/* Spend `amount` if the credit is above `floor`. Long work may overdraw it and is paid off afterwards. */
bool bucket_take(struct vcuda_card_usage *usage, uint64_t amount, int64_t floor);

/* Spend without a check. */
void bucket_force(struct vcuda_card_usage *usage, uint64_t amount);

/* Work was measured: it cost `used` and had paid `paid`. Use beyond the deepest debt is forgiven, and counted. */
void bucket_settle(struct vcuda_card_usage *usage, const struct vcuda_card_limits *limits, uint64_t used,
                   uint64_t paid);

/* Add work to the window of the last half to whole second, for readers that want the current load without an earlier
 * sample. A window older than BUCKET_WINDOW_MOST_NS means that there was no work. */
#define BUCKET_WINDOW_MOST_NS 2000000000u
void bucket_note_window(struct vcuda_card_usage *usage, uint64_t used, uint64_t now);

/* Record the duration of a span, for the longest one. */
void bucket_note_longest(struct vcuda_card_usage *usage, uint64_t ns);

#endif
