/* The container's memory account on each card, as hooks use it: reserve before the driver call, return afterwards.
 * Sizes in bytes; any thread may call. */
#ifndef VCUDA_ACCOUNT_H
#define VCUDA_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "cu_types.h"
#include "page.h"

/* Cards hand out physical memory in granules of 2 MiB, the page size of the driver's tables. */
#define GRANULE (UINT64_C(2) << 20)

/* Round up to whole granules; UINT64_MAX on overflow, which is more than any card has. */
uint64_t granules(uint64_t bytes);

/* True if memory is counted in this process. Attaches a process that has not called cuInit yet; *refused is set if its
 * control pages are broken. */
bool account_open(bool *refused);

/* True if a reservation of `bytes` would be granted, after freeing the charges of dead processes if necessary. Also
 * true for a card without known limits. */
bool account_makes_room(int card, uint64_t bytes);

/* Reserve `bytes`. Returns CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY if the container would exceed its limit.
 * pool_account_reserve() first trims this process's pools. */
CUresult account_reserve(int card, uint64_t bytes);

/* True if a reservation of `bytes` would be granted now, without freeing anything first. */
bool account_fits(int card, uint64_t bytes);

/* Charge memory that the driver has already allocated, even past the limit. */
void account_taken(int card, uint64_t bytes);

void account_return(int card, uint64_t bytes);

/* Managed memory is charged but need not be on the card. account_movable() records how many charged bytes are managed;
 * account_movable_return() ends such a charge. */
void account_movable(uint64_t bytes);
void account_movable_return(int card, uint64_t bytes);

/* How many of the `bytes` that this process released at `let_go_ns` (CLOCK_MONOTONIC) the host has since observed to be
 * gone from the card. For memory whose other holders cannot be observed from the container. Each byte is reported once;
 * the caller returns the charge. */
uint64_t account_seen_gone(int card, uint64_t bytes, uint64_t let_go_ns);

/* The card's limits; NULL if the card has no memory limit or does not belong to this container. */
const struct vcuda_card_limits *account_limits(int card);

/* Bytes that count against the limit: the accounts' charges plus what the host observes beyond them. */
uint64_t account_used(int card, const struct vcuda_card_limits *limits);

/* Bytes charged for each context on this card. */
uint64_t account_context_bytes(int card);

#endif
