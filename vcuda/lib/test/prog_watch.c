/* Watch a container from outside, as often as the machine allows, until stdin closes.
 *
 *   prog_watch USAGE_PAGE LIMIT [INDEX]
 *
 * Prints `samples over_account over_slots over_card`: how often it looked, and by how many bytes at most the account,
 * the sum over live slots, and what the modelled card (library REAL_NVML) has really given away were above the limit.
 * "now" on a line of stdin asks for one look: `account slots card`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../include/vcuda_page.h"

struct memory {
    unsigned long long total, free, used;
};
static int (*memory_of)(void *, struct memory *);

struct look {
    int64_t account, slots, card;
};

static struct look look(const struct vcuda_usage *usage, void *card) {
    struct memory memory = {0, 0, 0};
    struct look seen = {0, 0, 0};
    seen.account = (int64_t)(__atomic_load_n(&usage->card[0].charged, __ATOMIC_SEQ_CST) & VCUDA_CHARGED_MASK);
    for (unsigned i = 0; i < VCUDA_MAX_SLOTS && i < usage->slot_high; i++)
        if (__atomic_load_n(&usage->slot[i].state, __ATOMIC_ACQUIRE) == VCUDA_SLOT_LIVE)
            seen.slots += (int64_t)__atomic_load_n(&usage->slot[i].charged[0], __ATOMIC_SEQ_CST);
    if (memory_of && memory_of(card, &memory) == 0)
        seen.card = (int64_t)memory.used;
    return seen;
}

static int64_t higher(int64_t left, int64_t right) {
    return left > right ? left : right;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int fd = open(argv[1], O_RDONLY);
    int64_t limit = atoll(argv[2]);
    const struct vcuda_usage *usage = mmap(NULL, sizeof *usage, PROT_READ, MAP_SHARED, fd, 0);
    void *library = dlopen(getenv("REAL_NVML"), RTLD_NOW), *card = NULL;
    int (*init)(void) = NULL, (*by_index)(unsigned, void **) = NULL;
    if (usage == MAP_FAILED || !library)
        return 2;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&memory_of = dlsym(library, "nvmlDeviceGetMemoryInfo");
    if (init() != 0 || by_index(argc > 3 ? (unsigned)atoi(argv[3]) : 0, &card) != 0)
        return 2;
    printf("watching\n");
    fflush(stdout);
    struct look most = {0, 0, 0};
    long samples = 0;
    for (;; samples++) {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        struct look seen = look(usage, card);
        most.account = higher(most.account, seen.account);
        most.slots = higher(most.slots, seen.slots);
        most.card = higher(most.card, seen.card);
        if (poll(&input, 1, 0) > 0) {
            char line[16];
            if (!fgets(line, sizeof line, stdin))
                break;
            seen = look(usage, card);
            printf("%lld %lld %lld\n", (long long)seen.account, (long long)seen.slots, (long long)seen.card);
            fflush(stdout);
        }
    }
    printf("%ld %lld %lld %lld\n", samples, (long long)higher(0, most.account - limit),
           (long long)higher(0, most.slots - limit), (long long)higher(0, most.card - limit));
    return 0;
}
