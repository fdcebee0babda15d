/* The watcher of gates (with the arguments `keep DIRECTORY`: keeper.h): closes a card's gate while protected tenants
 * have work on it, and opens it when they have none.
 *
 * The agent starts it and writes to its standard input, whenever something changes, the cards on which both classes
 * are:
 *
 *   card <path of the gate>
 *   tenant <the card's place in its pages> <core limit, percent x 256> <path of the usage page>   a protected one of
 * the card above beside <the card's place in its pages> <path of the usage page>                               a
 * best-effort one go                                                                  this replaces what was said
 * before
 *
 * It sleeps until a library changes the times of a usage page (see VCUDA_MODE_PROTECTED), and looks by itself now and
 * then, for libraries that do not and processes that were killed. Pages that tenants can write are read with pread,
 * never mapped; of each, SLOTS_MOST processes count. When its input ends, it opens all gates and ends; if it is killed,
 * they open by their deadline.
 */
#define _GNU_SOURCE
#include "decision.h"
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "vcuda_page.h"

#define CARDS_MOST 64
#define TENANTS_MOST 1024
#define SLOTS_MOST 64
#define LINE_MOST (PATH_MAX + 64)
#define SELDOM_NS UINT64_C(50000000) /* between looks that nobody asked for */
#define OFTEN_NS UINT64_C(20000000)  /* the same while a gate is closed */
#define MUTE_NS UINT64_C(2000000)    /* the same while a tenant's library does not say when it begins */
#define MUTE_TIMES 3
#define AGAIN_NS UINT64_C(50000000)   /* until what could not be opened is tried again */
#define ASK_MOST_NS UINT64_C(1000000) /* of processor time, for the locks of one page at a look */
#define COSTLY_NS UINT64_C(100000)    /* a look at a page that cost more is followed by a rest */
#define REST_TIMES 20

struct tenant {
    struct decision_tenant decision;
    char path[PATH_MAX];
    int page, watch, card, gate;
    bool is_protected;
    uint64_t busy_ns;     /* of a best-effort one: what its page said last */
    unsigned mute;        /* how often in a row its work was found unannounced */
    uint64_t rests_until; /* its page cost much to read, and is not read before */
    bool is_wanted, rang;
};

struct gate {
    struct vcuda_gate *map;
    char path[PATH_MAX];
    uint64_t until; /* what its word says; 0: open */
    bool is_wanted;
    struct decision_card seen;
};

static struct gate gates[CARDS_MOST];
static struct tenant tenants[TENANTS_MOST];
static int gate_count, tenant_count;
static int bell = -1;
static struct decision_budget budget;
static volatile sig_atomic_t is_ending;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- gates ----------------------------------------------------------------------------------------------------- */

/* It has opened by its word. */
static void note_lapse(struct gate *gate, uint64_t now) {
    struct vcuda_gate *map = gate->map;
    if (!gate->until || gate->until > now)
        return;
    __atomic_store_n(&map->closed_ns, map->closed_ns + (gate->until - map->closed_at_ns), __ATOMIC_RELAXED);
    __atomic_store_n(&map->opened_at_ns, gate->until, __ATOMIC_RELAXED);
    gate->until = 0;
}

static void put(struct gate *gate, uint64_t until, uint64_t now) {
    struct vcuda_gate *map = gate->map;
    if (!map)
        return;
    note_lapse(gate, now);
    bool was_closed = gate->until, is_closed = until > now, is_sooner = was_closed && until < gate->until;
    if (is_closed && !was_closed) {
        __atomic_store_n(&map->closed_at_ns, now, __ATOMIC_RELAXED);
        __atomic_store_n(&map->closings, map->closings + 1, __ATOMIC_RELAXED);
    }
    if (!is_closed && was_closed) {
        __atomic_store_n(&map->closed_ns, map->closed_ns + (now - map->closed_at_ns), __ATOMIC_RELAXED);
        __atomic_store_n(&map->opened_at_ns, now, __ATOMIC_RELAXED);
    }
    gate->until = is_closed ? until : 0;
    __atomic_store_n(&map->closed_until_ns, gate->until, __ATOMIC_RELEASE);
    if (!is_sooner)
        return;
    __atomic_fetch_add(&map->openings, 1, __ATOMIC_RELEASE); /* those who wait sleep until it opens, at the latest */
    syscall(SYS_futex, &map->openings, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* A container may hold a lease on the gate, so that opening it would wait: it is tried again. The mapping keeps the
 * file open for writing, so that nobody gets a lease afterwards. */
static void map_gate(struct gate *gate) {
    struct stat status;
    int fd = open(gate->path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    void *at = MAP_FAILED;
    if (fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == VCUDA_GATE_SIZE)
        at = mmap(NULL, VCUDA_GATE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    gate->map = at == MAP_FAILED ? NULL : at;
}

static void open_all(void) {
    for (int i = 0; i < gate_count; i++)
        put(&gates[i], 0, now_ns());
}

/* ---- tenants ---------------------------------------------------------------------------------------------------- */

static uint64_t processor_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static bool is_held(int page, unsigned slot, unsigned count) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = count};
    return fcntl(page, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

/* Has a living process of the tenant work in flight? Whatever cannot be read says no, and so do locks that cost too
 * much to ask about: the kernel goes through all of a file's, and a tenant can set thousands. */
static bool is_pending(const struct tenant *tenant) {
    static struct vcuda_slot slots[SLOTS_MOST];
    uint32_t high;
    if (pread(tenant->page, &high, sizeof high, offsetof(struct vcuda_usage, slot_high)) != sizeof high || !high)
        return false;
    size_t count = high < SLOTS_MOST ? high : SLOTS_MOST;
    ssize_t size = pread(tenant->page, slots, count * sizeof *slots, offsetof(struct vcuda_usage, slot));
    bool is_any_held = count == 1;
    uint64_t began = processor_ns();
    for (unsigned i = 0; size > 0 && i < (size_t)size / sizeof *slots; i++) {
        if (slots[i].state != VCUDA_SLOT_LIVE || !slots[i].inflight[tenant->card])
            continue;
        if (!is_any_held && !is_held(tenant->page, 0, (unsigned)count))
            return false;
        is_any_held = true;
        if (is_held(tenant->page, i, 1))
            return true;
        if (processor_ns() - began > ASK_MOST_NS)
            return false;
    }
    return false;
}

static bool ask_pending(struct tenant *tenant, uint64_t now) {
    if (now < tenant->rests_until)
        return tenant->decision.pending;
    uint64_t began = processor_ns();
    bool pending = is_pending(tenant);
    uint64_t cost = processor_ns() - began;
    if (cost > COSTLY_NS)
        tenant->rests_until = now + REST_TIMES * cost;
    return pending;
}

static void follow(struct tenant *tenant) {
    char self[64];
    if (!tenant->is_protected || tenant->page < 0 || tenant->watch >= 0)
        return;
    snprintf(self, sizeof self, "/proc/self/fd/%d", tenant->page);
    tenant->watch = inotify_add_watch(bell, self, IN_ATTRIB);
}

static void open_tenant(struct tenant *tenant) {
    struct stat status;
    tenant->page = open(tenant->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (tenant->page >= 0 && (fstat(tenant->page, &status) != 0 || !S_ISREG(status.st_mode))) {
        close(tenant->page);
        tenant->page = -1;
    }
    follow(tenant);
}

/* What a container kept from being opened, with a lease or by using up the inotify instances of its uid. */
static void open_missing(uint64_t now) {
    static uint64_t again_at;
    if (now < again_at)
        return;
    again_at = now + AGAIN_NS;
    if (bell < 0)
        bell = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    for (int i = 0; i < gate_count; i++)
        if (!gates[i].map)
            map_gate(&gates[i]);
    for (int i = 0; i < tenant_count; i++) {
        if (tenants[i].page < 0)
            open_tenant(&tenants[i]);
        follow(&tenants[i]);
    }
}

/* Two tenants of one page (a container with several cards) have one watch. */
static bool is_last_of_watch(const struct tenant *tenant) {
    for (int i = 0; i < tenant_count; i++)
        if (&tenants[i] != tenant && tenants[i].watch == tenant->watch)
            return false;
    return true;
}

static void close_tenant(struct tenant *tenant) {
    if (tenant->watch >= 0 && is_last_of_watch(tenant))
        inotify_rm_watch(bell, tenant->watch);
    if (tenant->page >= 0)
        close(tenant->page);
}

/* ---- what the agent says ----------------------------------------------------------------------------------------- */

static int find_gate(const char *path) {
    for (int i = 0; i < gate_count; i++)
        if (!strcmp(gates[i].path, path))
            return i;
    if (gate_count == CARDS_MOST || strlen(path) >= PATH_MAX)
        return -1;
    struct gate *gate = &gates[gate_count];
    *gate = (struct gate){0};
    strcpy(gate->path, path);
    map_gate(gate);
    return gate_count++;
}

static void want_tenant(int gate, int card, bool is_protected, uint32_t cores_q8, const char *path) {
    if (gate < 0 || card < 0 || card >= VCUDA_MAX_CARDS || strlen(path) >= PATH_MAX)
        return;
    for (int i = 0; i < tenant_count; i++)
        if (tenants[i].gate == gate && tenants[i].card == card && tenants[i].is_protected == is_protected &&
            !strcmp(tenants[i].path, path)) {
            tenants[i].is_wanted = true;
            tenants[i].decision.cores_q8 = cores_q8;
            return;
        }
    if (tenant_count == TENANTS_MOST)
        return;
    struct tenant *tenant = &tenants[tenant_count];
    *tenant = (struct tenant){
        .gate = gate, .card = card, .watch = -1, .is_wanted = true, .rang = true, .is_protected = is_protected};
    strcpy(tenant->path, path);
    decision_begin(&tenant->decision, cores_q8, now_ns());
    open_tenant(tenant);
    tenant_count++;
}

/* What was not said again goes: first the tenants, since they name their gates by number. */
static void forget_unwanted(void) {
    int moved[CARDS_MOST], kept = 0;
    for (int i = 0; i < tenant_count; i++)
        if (!tenants[i].is_wanted) {
            close_tenant(&tenants[i]);
            tenants[i--] = tenants[--tenant_count];
        }
    for (int i = 0; i < gate_count; i++) {
        moved[i] = kept;
        if (gates[i].is_wanted) {
            gates[kept++] = gates[i];
            continue;
        }
        put(&gates[i], 0, now_ns());
        if (gates[i].map)
            munmap(gates[i].map, VCUDA_GATE_SIZE);
    }
    gate_count = kept;
    for (int i = 0; i < tenant_count; i++)
        tenants[i].gate = moved[tenants[i].gate];
}

static void take_line(char *line) {
    static int gate = -1;
    int card, read = 0;
    unsigned cores;
    if (!strncmp(line, "card ", 5)) {
        gate = find_gate(line + 5);
        if (gate >= 0)
            gates[gate].is_wanted = true;
    } else if (sscanf(line, "tenant %d %u %n", &card, &cores, &read) == 2 && read) {
        want_tenant(gate, card, true, cores, line + read);
    } else if (sscanf(line, "beside %d %n", &card, &read) == 1 && read) {
        want_tenant(gate, card, false, 0, line + read);
    } else if (!strcmp(line, "go")) {
        forget_unwanted();
        for (int i = 0; i < gate_count; i++)
            gates[i].is_wanted = false;
        for (int i = 0; i < tenant_count; i++)
            tenants[i].is_wanted = false;
        gate = -1;
    }
}

/* False at the end of input. */
static bool listen_to_agent(void) {
    static char line[LINE_MOST];
    static size_t used;
    char text[4096];
    ssize_t count = read(STDIN_FILENO, text, sizeof text);
    if (count <= 0)
        return count < 0 && (errno == EAGAIN || errno == EINTR);
    for (ssize_t i = 0; i < count; i++) {
        if (text[i] != '\n') {
            line[used < sizeof line - 1 ? used++ : used] = text[i];
            continue;
        }
        line[used] = '\0';
        used = 0;
        take_line(line);
    }
    return true;
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static void hear(void) {
    _Alignas(struct inotify_event) char events[4096];
    ssize_t count = read(bell, events, sizeof events);
    for (ssize_t at = 0; at + (ssize_t)sizeof(struct inotify_event) <= count;) {
        const struct inotify_event *event = (const void *)(events + at);
        for (int i = 0; i < tenant_count; i++)
            tenants[i].rang |= tenants[i].watch == event->wd || event->mask & IN_Q_OVERFLOW;
        at += (ssize_t)sizeof *event + event->len;
    }
}

/* GPU time of a best-effort tenant since the last look: what it says is believed, since it only gives others more. */
static uint64_t ran_ns(struct tenant *tenant) {
    uint64_t busy, before = tenant->busy_ns;
    off_t at = (off_t)(offsetof(struct vcuda_usage, card) + (size_t)tenant->card * sizeof(struct vcuda_card_usage) +
                       offsetof(struct vcuda_card_usage, busy_ns));
    if (pread(tenant->page, &busy, sizeof busy, at) != sizeof busy)
        return 0;
    tenant->busy_ns = busy;
    return before && busy > before && busy - before < DECISION_WINDOW_NS ? busy - before : 0;
}

static void look_at_cards(uint64_t now) {
    for (int k = 0; k < gate_count; k++)
        gates[k].seen = (struct decision_card){.closed = gates[k].until > now};
    for (int i = 0; i < tenant_count; i++) {
        struct decision_card *seen = &gates[tenants[i].gate].seen;
        if (tenants[i].is_protected)
            seen->pending += tenants[i].decision.pending;
        else
            seen->others_ns += ran_ns(&tenants[i]);
    }
}

static void look_at_tenants(uint64_t now) {
    look_at_cards(now);
    for (int i = 0; i < tenant_count; i++) {
        struct tenant *tenant = &tenants[i];
        bool was = tenant->decision.pending;
        if (!tenant->is_protected)
            continue;
        bool pending = ask_pending(tenant, now);
        decision_observe(&tenant->decision, pending, &gates[tenant->gate].seen, now);
        if (tenant->rang)
            tenant->mute = 0;
        else if (pending && !was && tenant->mute < MUTE_TIMES)
            tenant->mute++;
        tenant->rang = false;
    }
}

static void move_gates(uint64_t now) {
    for (int k = 0; k < gate_count; k++) {
        uint64_t until = 0;
        for (int i = 0; i < tenant_count; i++) {
            bool counts = tenants[i].is_protected && tenants[i].gate == k;
            uint64_t wanted = counts ? decision_until(&tenants[i].decision, now) : 0;
            until = wanted > until ? wanted : until;
        }
        put(&gates[k], until, now);
    }
}

/* When to look again if nobody rings. A gate that is held for a short pause opens by its word, without a look. */
static uint64_t next_look_ns(void) {
    uint64_t pause = tenant_count ? SELDOM_NS : UINT64_MAX;
    for (int k = 0; k < gate_count; k++)
        if (gates[k].until)
            pause = OFTEN_NS;
    for (int i = 0; i < tenant_count; i++)
        if (tenants[i].mute == MUTE_TIMES && pause > MUTE_NS)
            pause = MUTE_NS;
    return pause;
}

static void end(int signal_number) {
    (void)signal_number;
    is_ending = 1;
}

/* Until somebody rings, the agent speaks, or `due`. */
static bool wait_for_something(uint64_t due, bool *heard) {
    struct pollfd on[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = bell, .events = POLLIN}};
    uint64_t now = now_ns(), left = due > now ? due - now : 0;
    struct timespec time = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};
    if (ppoll(on, 2, due == UINT64_MAX ? NULL : &time, NULL) < 0)
        return errno == EINTR;
    if (on[0].revents && !listen_to_agent())
        return false;
    *heard = on[1].revents & POLLIN;
    return true;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = end};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    if (argc == 3 && !strcmp(argv[1], "keep")) {
        keep_open(argv[2], &is_ending);
        return 0;
    }
    prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
    bell = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    uint64_t due = UINT64_MAX;
    while (!is_ending) {
        bool heard = false;
        if (!wait_for_something(due, &heard))
            break;
        uint64_t now = now_ns(), pause = heard ? decision_pause_ns(&budget, now) : 0;
        if (pause) {
            struct timespec time = {.tv_nsec = (long)pause};
            nanosleep(&time, NULL);
            now = now_ns();
        }
        if (heard)
            hear();
        open_missing(now);
        look_at_tenants(now);
        move_gates(now);
        uint64_t next = next_look_ns();
        due = next == UINT64_MAX ? next : now + next;
    }
    open_all();
    return 0;
}
