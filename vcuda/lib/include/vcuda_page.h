/* The control pages: what the host tells the library, and what the library tells the host.
 *
 * Two files, made by the host before the container starts, mapped by the library at
 * /etc/vcuda/limits (read-only) and /etc/vcuda/usage (writable by the tenant); a best-effort container has the gates
 * of its cards beside them.
 * vcuda/page/ is the same layout in Python; tests/native/test_page_layout.py holds them equal.
 *
 * Rules
 *  - little-endian, fixed width, no pointers, sizes never change; a reserved byte is zero;
 *  - another abi_major is a page we cannot read (the failure policy decides); a higher abi_minor has
 *    more fields, which we ignore; in a lower one the fields it lacks are zero, and zero means "as before";
 *  - `limits` holds two copies. The writer fills the older (or invalid) one and never touches the newest;
 *    the reader takes the valid copy with the higher generation and never waits. Valid = magic, abi_major,
 *    sizes within bounds, and CRC-32C (Castagnoli) of the first `size` bytes with `crc` taken as zero;
 *  - `usage` is tenant-writable: the host reads it with pread, clamps every value and believes none;
 *  - all words of `usage` are accessed with __atomic; it holds no mutex, futex or semaphore;
 *  - usage.card[i], usage.timeline[i], usage.recent[i] and slot.charged[i] belong to limits.card[i];
 *  - slot i is alive while its process holds an open-file-description write lock on byte i of `usage`.
 */
#ifndef VCUDA_PAGE_H
#define VCUDA_PAGE_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the pages are little-endian, as is every machine with a supported driver"
#endif

#define VCUDA_ABI_MAJOR 1
#define VCUDA_ABI_MINOR 11
#define VCUDA_LIMITS_MAGIC UINT64_C(0x4d494c4144554356) /* "VCUDALIM" */
#define VCUDA_USAGE_MAGIC UINT64_C(0x4753554144554356)  /* "VCUDAUSG" */
#define VCUDA_GATE_MAGIC UINT64_C(0x5441474144554356)   /* "VCUDAGAT" */
#define VCUDA_MAX_CARDS 16
#define VCUDA_MAX_SLOTS 1024
#define VCUDA_COPY_SIZE 4096 /* one copy a page; two with 16 cards each do not fit in one */
#define VCUDA_LIMITS_SIZE (2 * VCUDA_COPY_SIZE)
#define VCUDA_USAGE_SIZE (320 * 1024)
#define VCUDA_GATE_SIZE 4096

/* vcuda_limits_copy.flags */
#define VCUDA_FLAG_FAIL_OPEN 0x1u     /* a broken usage page: run without limits instead of refusing cuInit */
#define VCUDA_FLAG_ELASTIC 0x2u       /* up to core_ceiling_q8 while no other container uses the card */
#define VCUDA_FLAG_OVERSUBSCRIBE 0x4u /* linear allocations may fall back to managed memory */
/* 0x8 must not be reused: older libraries hold no launch back if it is set */

/* vcuda_card_limits.mode: a limit is in force only if its bit is set; a zero limit with the bit is zero. */
#define VCUDA_MODE_MEMORY_LIMITED 0x1u
#define VCUDA_MODE_CORES_LIMITED 0x2u
/* The container's class; neither bit: normal, or a host before minor 5. */
#define VCUDA_MODE_PROTECTED 0x4u   /* touches the usage file whenever a slot's inflight changes from or to 0 */
#define VCUDA_MODE_BEST_EFFORT 0x8u /* waits at the card's gate, if it has one */

/* vcuda_card_limits.instance, its low byte: how NVML names a MIG instance. By place, `uuid` is its card's; the GPU
 * instance is in bits 8 to 19, the compute instance in bits 20 to 31. */
#define VCUDA_INSTANCE_BY_UUID 1u
#define VCUDA_INSTANCE_BY_PLACE 2u

struct vcuda_card_limits {
    uint8_t uuid[16];         /* as cuDeviceGetUuid_v2 returns it; a MIG instance has its own */
    uint64_t memory_limit;    /* bytes */
    uint64_t context_reserve; /* bytes charged for each context of a process on this card */
    uint64_t
        host_adjust; /* bytes that the driver counts for the container beyond `charged`; count against the limit too */
    uint64_t host_excess;     /* bytes of `charged`, less `movable`, that the driver does not count. Since minor 2 */
    uint32_t core_limit_q8;   /* percent x 256 of GPU time in each window */
    uint32_t core_ceiling_q8; /* percent x 256; equal to the limit when hard */
    uint64_t burst_ns;        /* credit that idling may save up; more where the window is known to have room for it */
    uint64_t debt_ns;         /* credit never falls below minus this */
    uint64_t window_ns;       /* the limit holds over each window of this length */
    uint32_t gain_q8;         /* charge = elapsed x gain / 256; 0 means 256 */
    uint32_t co_active_q8; /* number of processes, of all containers, at work on the card at once, x 256; 0 means 256 */
    uint32_t mode;         /* VCUDA_MODE_* */
    uint32_t instance;     /* 0 for a whole card, else a MIG instance: VCUDA_INSTANCE_* */
    uint64_t host_looked_ns; /* CLOCK_MONOTONIC before driver and usage were read for host_excess. Since minor 2 */
    uint64_t host_counted;   /* bytes that the driver counted for the container at host_looked_ns */
    /* While protected and best-effort containers share the card: the share in force, percent x 256, as decided by the
     * host. 0: the card has only one class, and co_active_q8 applies. Since minor 5 */
    uint32_t granted_q8;
    /* For a protected container beside best-effort ones: the part of the card that those are guaranteed, as far as they
     * use it, percent x 256. No more of their work than this can delay the container's own. 0: nothing, or a host
     * before minor 6. Since minor 6 */
    uint32_t beside_q8;
    uint32_t others_most; /* processes of other containers that had work in one millisecond, at most, lately; 0: none,
                             or a host before minor 10. Since minor 10 */
    uint32_t
        others_part_q16; /* of the time for which a process of this container had work in flight, the part x 65536
                            for which others were charged meanwhile, at most; 0: not known, or a host before minor 11 */
};

struct vcuda_limits_copy {
    uint64_t magic;
    uint16_t abi_major, abi_minor;
    uint32_t crc;
    uint64_t generation;  /* of two valid copies the higher one is newer; the first is 1 */
    uint32_t size;        /* bytes under the CRC: header_size + card_count * card_size */
    uint16_t header_size; /* where card[0] starts: a later minor may have a longer header ... */
    uint16_t card_size;   /* ... and longer cards */
    uint32_t card_count;  /* <= VCUDA_MAX_CARDS */
    uint32_t flags;       /* VCUDA_FLAG_* */
    uint32_t reserved0[2];
    uint64_t heartbeat_ns; /* host CLOCK_MONOTONIC when this copy was written; 0: no host is running */
    uint64_t reserved1;
    uint8_t identity[16]; /* hash that identifies the allocation */
    uint64_t reserved[6];
    struct vcuda_card_limits card[VCUDA_MAX_CARDS];
    uint8_t rest[VCUDA_COPY_SIZE - 128 - VCUDA_MAX_CARDS * sizeof(struct vcuda_card_limits)];
};

struct vcuda_limits {
    struct vcuda_limits_copy copy[2];
};

/* Every group of words that different processes write at the same time has a 128-byte line of its own
 * (two 64-byte lines: the adjacent-line prefetcher pairs them). */
#define VCUDA_LINE 128

/* `charged` packs an epoch (high 16 bits) over bytes (low 48). Each repair raises the epoch, so that a
 * reservation that straddles a repair fails its CAS instead of being counted twice or lost. */
#define VCUDA_CHARGED_BITS 48
#define VCUDA_CHARGED_MASK ((UINT64_C(1) << VCUDA_CHARGED_BITS) - 1)

struct vcuda_card_usage {
    _Alignas(VCUDA_LINE) uint64_t charged; /* epoch:16 | bytes:48; derived: the sum over live slots is the truth */
    uint64_t peak;                         /* highest value of bytes */
    uint64_t refusals;                     /* allocations refused by the limit */
    uint64_t refused_bytes;                /* size of the last refused allocation */
    uint64_t excess_returned; /* time:16 | bytes:48: how much of host_excess, as of that time, has been returned */

    _Alignas(VCUDA_LINE) int64_t credit_ns; /* GPU time this container may still use */
    uint64_t refill_ns;                     /* CLOCK_MONOTONIC up to which credit has been given */

    _Alignas(VCUDA_LINE) uint64_t busy_ns; /* GPU time used in total */
    uint64_t throttle_ns;                  /* total time launches were held back */
    uint64_t launches;
    uint64_t debt_cut_ns;  /* use forgiven by the bound on debt */
    uint64_t starved;      /* launches let through by the deadlock guard */
    uint64_t held_idle_ns; /* the part of throttle_ns with no work of the container in flight, each moment once. Since
                              minor 4 */
    uint64_t idle_from_ns; /* CLOCK_MONOTONIC: time before this is not idle, or is counted already. Since minor 4 */
    uint64_t in_flight_ns; /* time with launches of the container in flight, including delays by other containers, each
                              moment once. Since minor 7 */

    _Alignas(VCUDA_LINE) uint64_t last_busy_ns; /* CLOCK_MONOTONIC when work was last in flight */
    uint64_t longest_ns;                        /* longest settled piece of work */
    uint64_t window_busy_ns;                    /* GPU time delivered since window_start_ns */
    uint64_t window_start_ns;
    /* Since minor 8: launches of known duration that were measured while other containers used the card; how many of
     * them took 8 ms longer than known; and by how much these were longer in total. */
    uint64_t known_launches;
    uint64_t stalled_launches;
    uint64_t stalled_ns;
    /* Since minor 9: the variance of `busy_ns`, in square microseconds, since launches that are not measured are
     * charged the mean of their kind. */
    uint64_t error_us2;
};

#define VCUDA_SLOT_FREE 0u
#define VCUDA_SLOT_LIVE 1u

struct vcuda_slot {
    uint32_t state;         /* VCUDA_SLOT_*; LIVE without a held lock is a dead process */
    uint32_t pid;           /* in the process's own PID namespace */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid */
    uint64_t start_time;    /* field 22 of /proc/self/stat, clock ticks */
    uint64_t nonce;
    uint64_t heartbeat_ns; /* CLOCK_MONOTONIC when the library last updated the slot; each millisecond while work is in
                              flight */
    /* Since minor 2, parts of the charge on all cards: */
    uint64_t movable;            /* bytes that need not be on a card: managed memory */
    uint64_t untold;             /* bytes that the process released and whose other holders the library cannot detect */
    uint64_t unsettled_since_ns; /* CLOCK_MONOTONIC: work launched before this is settled. 0: not known */
    uint32_t inflight[VCUDA_MAX_CARDS]; /* streams with unsettled work, by card */
    uint64_t charged[VCUDA_MAX_CARDS];  /* bytes, by card */
};

/* A note from a process of the container to the host, which reads notes every second. Stored in a ring: the newest
 * overwrites the oldest. Since minor 1. The host composes the sentence; `text` is one word in it, and the host drops a
 * text that it does not expect. */
#define VCUDA_NOTES 24
#define VCUDA_NOTE_MEMORY_REFUSED 1u   /* `bytes` beside `used` of `limit` on `card` */
#define VCUDA_NOTE_CUDA_REFUSED 2u     /* cuInit failed; text: which file, and what is wrong with it */
#define VCUDA_NOTE_UNKNOWN_FUNCTION 3u /* forwarded unchanged; text: the function */
#define VCUDA_NOTE_ROUTED_BY_NAME                                                                                      \
    4u                            /* hooked by name, because the pointer is not an exported function; text: its name */
#define VCUDA_NOTE_LIMITS_LOST 5u /* both copies became invalid; the last limits read stay in force */
#define VCUDA_NO_CARD UINT32_MAX

/* The framework that the process has loaded; the first in this order if there are several. Since minor 4. */
#define VCUDA_FRAMEWORK_VLLM 1u
#define VCUDA_FRAMEWORK_SGLANG 2u
#define VCUDA_FRAMEWORK_PYTORCH 3u
#define VCUDA_FRAMEWORK_JAX 4u
#define VCUDA_FRAMEWORK_TENSORFLOW 5u
#define VCUDA_FRAMEWORK_ONNXRUNTIME 6u
#define VCUDA_FRAMEWORK_TENSORRT 7u
#define VCUDA_FRAMEWORK_GGML 8u
#define VCUDA_FRAMEWORK_CUPY 9u
#define VCUDA_FRAMEWORKS 9u

struct vcuda_note {
    uint64_t number;    /* 1, 2, ... since the page was created; 0 while the note is being written */
    uint64_t when_ns;   /* CLOCK_MONOTONIC */
    uint32_t code;      /* VCUDA_NOTE_* */
    uint32_t pid;       /* in the process's own PID namespace */
    uint32_t card;      /* among limits.card, or VCUDA_NO_CARD */
    uint32_t framework; /* VCUDA_FRAMEWORK_*; 0: unknown, or a library before minor 4 */
    uint64_t bytes;
    uint64_t used;
    uint64_t limit;
    char text[64];   /* NUL-terminated when written */
    uint64_t pooled; /* part of `used` that memory pools and graphs of this process have reserved. Since minor 4 */
};

/* When the container had work in flight on a card, per millisecond, so that the host knows which containers shared the
 * card. Since minor 3. Millisecond t of CLOCK_MONOTONIC is in cell t % VCUDA_TIMELINE_CELLS: the low 16 bits of t /
 * VCUDA_TIMELINE_CELLS are in the high half, the microseconds with work in flight, summed over contexts, in the low
 * half. Work is entered when it is settled. */
#define VCUDA_TIMELINE_CELLS 512

struct vcuda_timeline {
    uint32_t cell[VCUDA_TIMELINE_CELLS];
};

/* When the container's processes recently had work on a card, measured or estimated. A process that has measured a
 * launch finds here how much of that time other processes had. A ring that all of them write; the host does not read
 * it. Since minor 7. */
#define VCUDA_RECENT_WORK_ENTRIES 128

/* An entry is one word, so it is never read half-written: the low 32 bits of the time when the work began,
 * CLOCK_MONOTONIC in units of 128 ns; its duration in these units, 22 bits; the process's slot, 10 bits. 0: no entry.
 */
#define VCUDA_RECENT_WORK_UNIT_NS 128
#define VCUDA_RECENT_WORK_UNITS_BITS 22
#define VCUDA_RECENT_WORK_SLOT_BITS 10

struct vcuda_recent_work {
    _Alignas(VCUDA_LINE)
        uint64_t entries; /* number of entries ever made: number n is at (n - 1) % VCUDA_RECENT_WORK_ENTRIES */
    uint64_t entry[VCUDA_RECENT_WORK_ENTRIES];
};

struct vcuda_usage {
    uint64_t magic;
    uint16_t abi_major, abi_minor;
    uint32_t size;        /* VCUDA_USAGE_SIZE */
    uint8_t build_id[16]; /* of the last library that wrote */
    uint32_t slot_high;   /* no slot at or above this index was ever used */
    uint32_t reserved0;

    _Alignas(VCUDA_LINE) uint64_t generation_seen; /* generation of the limits that was read last */
    uint64_t limits_invalid;                       /* reads that found no valid copy */

    _Alignas(VCUDA_LINE) uint64_t unknown_symbols; /* resolver lookups of names that the tables lack */
    uint64_t routed_by_name;  /* hooks placed by name, because the pointer is not an exported function */
    uint64_t slots_exhausted; /* processes refused because no slot was free */
    uint64_t slots_reaped;
    uint64_t repairs;      /* recomputations of charged */
    char unknown_name[64]; /* one of the unknown names, NUL-terminated when written */

    _Alignas(VCUDA_LINE) uint64_t notes; /* number of notes ever written, which is the number of the newest */
    _Alignas(VCUDA_LINE) struct vcuda_note note[VCUDA_NOTES]; /* number n is at (n - 1) % VCUDA_NOTES */

    _Alignas(4096) struct vcuda_card_usage card[VCUDA_MAX_CARDS];
    struct vcuda_slot slot[VCUDA_MAX_SLOTS];
    struct vcuda_timeline timeline[VCUDA_MAX_CARDS];
    struct vcuda_recent_work recent[VCUDA_MAX_CARDS];
    uint8_t rest[VCUDA_USAGE_SIZE - 4096 - VCUDA_MAX_CARDS * sizeof(struct vcuda_card_usage) -
                 VCUDA_MAX_SLOTS * sizeof(struct vcuda_slot) - VCUDA_MAX_CARDS * sizeof(struct vcuda_timeline) -
                 VCUDA_MAX_CARDS * sizeof(struct vcuda_recent_work)];
};

/* The gate of a card: best-effort containers launch no work on the card while it is closed. One file per card, written
 * by the host only, mounted read-only at
 * /etc/vcuda/gates/<the UUID's 32 hex digits> in containers that were created as best-effort ones.
 *
 * A gate opens by itself if the host dies. Libraries keep their time slices on the card as locks on the file
 * (src/cuda/turn.h); its contents do not show them. */
struct vcuda_gate {
    uint64_t magic;
    uint64_t closed_until_ns; /* CLOCK_MONOTONIC; 0 or past: open. Written with release, read with acquire */
    uint32_t openings;        /* incremented each time the gate is opened early: the futex on which launches wait */
    uint32_t reserved0;
    uint64_t closed_at_ns; /* when it was last closed */
    uint64_t closings;     /* number of times it was closed */
    uint64_t closed_ns;    /* total time for which it was closed */
    uint64_t opened_at_ns; /* when it was last opened */
    uint8_t rest[VCUDA_GATE_SIZE - 56];
};

_Static_assert(sizeof(struct vcuda_card_limits) == 128, "card limits are 128 bytes");
_Static_assert(offsetof(struct vcuda_limits_copy, card) == 128, "the header is 128 bytes");
_Static_assert(sizeof(struct vcuda_limits_copy) == VCUDA_COPY_SIZE, "a copy is a page");
_Static_assert(sizeof(struct vcuda_limits) == VCUDA_LIMITS_SIZE, "limits is two pages");
_Static_assert(sizeof(struct vcuda_card_usage) == 4 * VCUDA_LINE, "a card's usage is four lines");
_Static_assert(sizeof(struct vcuda_slot) == 256, "a slot is 256 bytes");
_Static_assert(sizeof(struct vcuda_note) == VCUDA_LINE, "a note is a line");
_Static_assert(offsetof(struct vcuda_usage, card) == 4096, "cards follow the first page");
_Static_assert(sizeof(struct vcuda_usage) == VCUDA_USAGE_SIZE, "usage is 320 KiB");
_Static_assert(sizeof(struct vcuda_gate) == VCUDA_GATE_SIZE, "a gate is a page");

#endif
