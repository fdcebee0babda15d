#include "note.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loader.h"
#include "page.h"
#include "paths.h"

#define SECOND_NS UINT64_C(1000000000)
#define WORDS (sizeof(struct vcuda_note) / sizeof(uint64_t))

union record {
    struct vcuda_note note;
    uint64_t word[WORDS]; /* the number is the first */
};

/* Looked for until found: programs load their framework before CUDA, and some parts of it later. */
static uint32_t framework(void) {
    static const char *const marks[VCUDA_FRAMEWORKS] = {
        "/vllm/_C",       "/sgl_kernel/",    "/libtorch_cuda.so",
        "/jaxlib/",       "/libtensorflow_", "/libonnxruntime_providers_cuda",
        "/libnvinfer.so", "/libggml-cuda",   "/cupy/",
    };
    static uint32_t known;
    uint32_t found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!found) {
        found = (loader_first_loaded(marks, VCUDA_FRAMEWORKS) + 1) % (VCUDA_FRAMEWORKS + 1);
        __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    }
    return found;
}

void note_put(struct vcuda_usage *usage, const struct vcuda_note *note) {
    union record record = {.note = *note};
    uint64_t number = __atomic_add_fetch(&usage->notes, 1, __ATOMIC_RELAXED);
    uint64_t *place = (uint64_t *)&usage->note[(number - 1) % VCUDA_NOTES];
    record.note.when_ns = vcuda_now_ns();
    record.note.pid = (uint32_t)getpid();
    record.note.framework = framework();
    record.note.text[sizeof record.note.text - 1] = '\0';
    __atomic_store_n(place, 0, __ATOMIC_RELAXED);
    for (size_t i = 1; i < WORDS; i++)
        __atomic_store_n(place + i, record.word[i], __ATOMIC_RELEASE);
    __atomic_store_n(place, number, __ATOMIC_RELEASE);
}

/* One a second of each code: a program that asks for too much in a loop is told of once, and costs nothing. */
static bool due(uint32_t code) {
    static uint64_t next_ns[VCUDA_NOTE_LIMITS_LOST + 1];
    uint64_t now = vcuda_now_ns(), next = __atomic_load_n(&next_ns[code], __ATOMIC_RELAXED);
    return now >= next && __atomic_compare_exchange_n(&next_ns[code], &next, now + SECOND_NS, false, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED);
}

static void put_from_outside(const struct vcuda_note *note) {
    char path[PATHS_MAX];
    void *mapped = NULL;
    int error, saved = errno;
    if (paths_usage(path) && !page_map(path, VCUDA_USAGE_SIZE, true, &mapped, &error)) {
        if (!page_judge_usage(mapped))
            note_put(mapped, note);
        munmap(mapped, VCUDA_USAGE_SIZE);
    }
    errno = saved;
}

void note_send(struct vcuda_usage *usage, const struct vcuda_note *note) {
    if (!due(note->code))
        return;
    if (usage)
        note_put(usage, note);
    else
        put_from_outside(note);
}

void note_text(struct vcuda_usage *usage, uint32_t code, const char *text) {
    struct vcuda_note note = {.code = code, .card = VCUDA_NO_CARD};
    strncpy(note.text, text, sizeof note.text - 1);
    note_send(usage, &note);
}
