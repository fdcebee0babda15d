/* The container's account of a card's memory, as hooks use it: reserve before the driver is called, and give back. */
#ifndef VCUDA_ACCOUNT_H
#define VCUDA_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "page.h"

/* Cards hand memory out in pieces of 2 MiB: that is the size of a page of the driver's tables. */
#define GRANULE (UINT64_C(2) << 20)

/* Up to whole granules; what would overflow is more than any card has, and stays so. */
uint64_t granules(uint64_t bytes);

/* Is memory counted in this process? Attaches one that has not called cuInit; *refused if its pages are broken. */
bool account_open(bool *refused);

/* Would it be granted, once dead processes' bytes are freed if need be? True where it is not for us to say. */
bool account_makes_room(int card, uint64_t bytes);

/* Reserve: CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY if the container would then hold more than its limit.
 * pool_account_reserve() first has this process's pools give back what they keep. */
CUresult account_reserve(int card, uint64_t bytes);

/* Would it be granted as things are? */
bool account_fits(int card, uint64_t bytes);

/* The driver has it already, whatever the limit. */
void account_taken(int card, uint64_t bytes);

void account_return(int card, uint64_t bytes);

/* Of what is charged, so much is managed memory, which need not be on the card; and the end of such memory. */
void account_movable(uint64_t bytes);
void account_movable_return(int card, uint64_t bytes);

/* Of `bytes` let go of at this time, of which nothing in the container tells whether others hold them: how many the
 * host has seen since to be gone from the card. Each is told once; the caller returns them. */
uint64_t account_seen_gone(int card, uint64_t bytes, uint64_t let_go_ns);

/* The card's limits; NULL if it has no memory limit, or is no card of ours. */
const struct vcuda_card_limits *account_limits(int card);

/* Bytes that count against the limit: what the accounts hold and what the host knows beyond it. */
uint64_t account_used(int card, const struct vcuda_card_limits *limits);

/* Bytes charged for a context of this card. */
uint64_t account_context_bytes(int card);

#endif
