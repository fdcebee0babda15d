/* Attaching a process to its container's pages.
 *
 * An attachment is built whole, then published with one compare-and-swap; a thread that loses takes its own down and
 * uses the winner's. So nobody waits for anybody, and a fork at any instant leaves nothing half locked.
 * A child of fork has no attachment: its handler drops the parent's, and cuInit in the child makes a new one. What the
 * child keeps is the parent's descriptor, and with it the lock: slots.c tells why.
 */
#define _GNU_SOURCE
#include "attachment.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "build_id.h"
#include "fork.h"
#include "accounts.h"
#include "limits.h"
#include "lock.h"
#include "log_once.h"
#include "nap.h"
#include "note.h"
#include "paths.h"
#include "slots.h"

/* Limits change at 10 Hz at most; a view is reused after this many changes, seconds after it was handed out. */
#define VIEWS 32

struct attachment {
    struct vcuda_page_view page_view; /* first: it is what others see of it */
    struct slots_claim claim;
    struct vcuda_limits_view views[VIEWS];
    uint64_t retry_ns; /* after a torn copy: no new try before */
    unsigned next_view;
    bool refreshing;
};

static enum vcuda_attachment verdict; /* while nothing is attached */

/* Before attaching, which is when programs look most names up: how many, and the first of them. */
struct before {
    uint64_t count;
    char first[64];
    bool named;
};
static struct before unknown_before, by_name_before;

static uint64_t coarse_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct attachment *here(void) {
    return (struct attachment *)__atomic_load_n(&vcuda_page_view, __ATOMIC_ACQUIRE);
}

enum vcuda_attachment vcuda_attached(void) {
    return here() ? VCUDA_ATTACHED : __atomic_load_n(&verdict, __ATOMIC_RELAXED);
}

static void publish(struct attachment *a, const struct vcuda_limits_view *view) {
    struct vcuda_limits_view *slot = &a->views[a->next_view++ % VIEWS];
    *slot = *view;
    __atomic_store_n(&a->page_view.current, slot, __ATOMIC_RELEASE);
    __atomic_store_n(&a->page_view.usage->generation_seen, view->generation, __ATOMIC_RELAXED);
}

/* A generation word differs from the one we know: one thread reads again, the others go on with what is in force.
 * If the newest copy is not whole it is being written, or its writer died: the next try is a millisecond away. */
static void refresh(struct attachment *a) {
    if (coarse_ns() < __atomic_load_n(&a->retry_ns, __ATOMIC_RELAXED) || !spin_try(&a->refreshing))
        return;
    char path[PATHS_MAX];
    int saved = errno;
    if (paths_usage(path))
        slots_keep(&a->claim, path);
    errno = saved;
    const struct vcuda_limits *page = a->page_view.limits;
    uint64_t first = vcuda_generation_word(page, 0), second = vcuda_generation_word(page, 1);
    struct vcuda_limits_view view;
    const char *fault = limits_read(page, &view);
    if (!fault && view.generation > a->page_view.current->generation)
        publish(a, &view);
    if (!fault && view.generation >= first && view.generation >= second) {
        __atomic_store_n(&a->page_view.seen[0], first, __ATOMIC_RELEASE);
        __atomic_store_n(&a->page_view.seen[1], second, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n(&a->retry_ns, coarse_ns() + 1000000, __ATOMIC_RELAXED);
    }
    if (fault) {
        __atomic_fetch_add(&a->page_view.usage->limits_invalid, 1, __ATOMIC_RELAXED);
        note_text(a->page_view.usage, VCUDA_NOTE_LIMITS_LOST, fault);
    }
    spin_unlock(&a->refreshing);
}

const struct vcuda_limits_view *vcuda_limits(void) {
    const struct vcuda_limits_view *view = vcuda_limits_here();
    struct attachment *a = here();
    if (__builtin_expect(view || !a, 1))
        return view;
    refresh(a);
    return __atomic_load_n(&a->page_view.current, __ATOMIC_ACQUIRE);
}

void vcuda_touch_usage(void) {
    struct attachment *a = here();
    int saved = errno;
    if (a)
        slots_touch(&a->claim);
    errno = saved;
}

int vcuda_card_of(const uint8_t uuid[16]) {
    const struct vcuda_limits_view *view = vcuda_limits();
    for (uint32_t i = 0; view && i < view->card_count; i++)
        if (!memcmp(view->card[i].uuid, uuid, 16))
            return (int)i;
    return -1;
}

static void copy_name(char to[64], const char *name) {
    char text[64] = {0};
    for (size_t i = 0; i < sizeof text - 1 && name[i]; i++)
        text[i] = name[i];
    memcpy(to, text, sizeof text);
}

static void count_before(struct before *before, const char *name) {
    if (__atomic_fetch_add(&before->count, 1, __ATOMIC_RELAXED) == 0) {
        copy_name(before->first, name);
        __atomic_store_n(&before->named, true, __ATOMIC_RELEASE);
    }
}

void vcuda_count_unknown(const char *name) {
    struct attachment *a = here();
    if (!a) {
        count_before(&unknown_before, name);
        return;
    }
    __atomic_fetch_add(&a->page_view.usage->unknown_symbols, 1, __ATOMIC_RELAXED);
    copy_name(a->page_view.usage->unknown_name, name);
    note_text(a->page_view.usage, VCUDA_NOTE_UNKNOWN_FUNCTION, name);
}

void vcuda_count_routed_by_name(const char *name) {
    struct attachment *a = here();
    if (!a) {
        count_before(&by_name_before, name);
        return;
    }
    __atomic_fetch_add(&a->page_view.usage->routed_by_name, 1, __ATOMIC_RELAXED);
    note_text(a->page_view.usage, VCUDA_NOTE_ROUTED_BY_NAME, name);
}

/* In the child of a fork: the slot is the parent's. The mappings stay, since a caller up the stack may look at them. */
static void forget_in_child(void) {
    vcuda_page_view = NULL;
    verdict = VCUDA_DETACHED;
    accounts_forget();
}

/* The newest copy; while the host is writing, for some 10 ms, both may look torn to a slow reader. */
static const char *read_patiently(const struct vcuda_limits *page, struct vcuda_limits_view *view) {
    const char *fault = limits_read(page, view);
    for (int i = 0; fault && i < 10 && page->copy[0].magic == VCUDA_LIMITS_MAGIC; i++) {
        nap(1000000);
        fault = limits_read(page, view);
    }
    return fault;
}

static enum vcuda_attachment refuse(const char *path, const char *fault, int error) {
    char text[64];
    const char *name = strrchr(path, '/');
    snprintf(text, sizeof text, "%s %s%s%s", name ? name + 1 : path, fault, error ? ": " : "",
             error ? strerror(error) : "");
    note_text(NULL, VCUDA_NOTE_CUDA_REFUSED, text);
    vcuda_log_once("CUDA is refused in this container: %s %s%s%s. The node's gpu-manager makes this file; "
                   "restart the pod, and if that does not help ask the node's operator",
                   path, fault, error ? ": " : "", error ? strerror(error) : "");
    return VCUDA_REFUSED;
}

/* A broken usage page: the host's policy decides. */
static enum vcuda_attachment give_up(const struct vcuda_limits_view *view, const char *path, const char *fault,
                                     int error) {
    if (!(view->flags & VCUDA_FLAG_FAIL_OPEN))
        return refuse(path, fault, error);
    vcuda_log_once("limits are not enforced in this container: %s %s%s%s", path, fault, error ? ": " : "",
                   error ? strerror(error) : "");
    return VCUDA_UNLIMITED;
}

/* Once attached: what was counted before. The first name of it, if there is one. */
static const char *catch_up(struct attachment *a, uint64_t *count, struct before *before, uint32_t code) {
    __atomic_fetch_add(count, __atomic_exchange_n(&before->count, 0, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    const char *first = __atomic_exchange_n(&before->named, false, __ATOMIC_ACQUIRE) ? before->first : NULL;
    if (first)
        note_text(a->page_view.usage, code, first);
    return first;
}

static void introduce(struct attachment *a) {
    struct vcuda_usage *usage = a->page_view.usage;
    memcpy(usage->build_id, VCUDA_BUILD_ID, sizeof usage->build_id);
    const char *unknown = catch_up(a, &usage->unknown_symbols, &unknown_before, VCUDA_NOTE_UNKNOWN_FUNCTION);
    if (unknown)
        copy_name(usage->unknown_name, unknown);
    catch_up(a, &usage->routed_by_name, &by_name_before, VCUDA_NOTE_ROUTED_BY_NAME);
    if (!vcuda_reap() && a->claim.took_dead)
        vcuda_repair_all();
}

/* Fill `a`, or say why not; what it has mapped by then is the caller's to unmap. */
static enum vcuda_attachment build(struct attachment *a) {
    char path[PATHS_MAX];
    void *mapped = NULL;
    int error = 0;
    if (!paths_limits(path))
        return refuse("the limits page", "has too long a path", 0);
    const char *fault = page_map(path, VCUDA_LIMITS_SIZE, false, &mapped, &error);
    if (fault)
        return refuse(path, fault, error);
    a->page_view.limits = mapped;
    struct vcuda_limits_view view;
    if ((fault = read_patiently(a->page_view.limits, &view)))
        return refuse(path, fault, 0);
    if (!paths_usage(path))
        return refuse("the usage page", "has too long a path", 0);
    if ((fault = page_map(path, VCUDA_USAGE_SIZE, true, &mapped, &error)))
        return give_up(&view, path, fault, error);
    a->page_view.usage = mapped;
    if ((fault = page_judge_usage(a->page_view.usage)))
        return give_up(&view, path, fault, 0);
    if ((error = slots_claim(a->page_view.usage, path, &a->claim))) /* never open: a tenant can use the slots up */
        return refuse(path, error == ENOSPC ? "has no free slot" : "cannot be locked", error == ENOSPC ? 0 : error);
    a->page_view.slot = &a->page_view.usage->slot[a->claim.index];
    publish(a, &view);
    return VCUDA_ATTACHED;
}

static void unmap(struct attachment *a) {
    if (a->page_view.limits)
        munmap((void *)a->page_view.limits, VCUDA_LIMITS_SIZE);
    if (a->page_view.usage)
        munmap(a->page_view.usage, VCUDA_USAGE_SIZE);
    munmap(a, sizeof *a);
}

enum vcuda_attachment vcuda_attach(void) {
    if (here())
        return VCUDA_ATTACHED;
    int saved = errno;
    fork_forgets(forget_in_child);
    struct attachment *a = mmap(NULL, sizeof *a, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (a == MAP_FAILED)
        return refuse("its memory", "cannot be mapped", errno);
    enum vcuda_attachment result = build(a);
    struct vcuda_page_view *none = NULL;
    if (result == VCUDA_ATTACHED && __atomic_compare_exchange_n(&vcuda_page_view, &none, &a->page_view, false,
                                                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        introduce(a);
    } else {
        if (result == VCUDA_ATTACHED)
            slots_release(a->page_view.usage, &a->claim);
        else
            __atomic_store_n(&verdict, result, __ATOMIC_RELAXED);
        unmap(a);
    }
    errno = saved;
    return result;
}
