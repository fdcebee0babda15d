/* Linear, mapped and managed memory and arrays: see guesses.h. */
#include "guesses.h"

static void small_allocations(void) {
    for (int at = 0; at < 100; at++)
        allocate(4096);
    taken("100_of_4_kib");
    for (int at = 0; at < 500; at++)
        allocate(4096);
    taken("600_of_4_kib");
}
static void odd_sizes(void) {
    allocate(MIB);
    taken("1_mib");
    allocate(MIB + 1);
    taken("1_mib_and_a_byte_more");
    allocate(5 * MIB);
    taken("5_mib_more");
}
static void nothing(void) {
    FIND(cuMemAlloc, 3020, (pointer *, size_t));
    pointer memory = 1;
    answer("alloc_of_0", cuMemAlloc(&memory, 0));
    answer("free_of_0", release(0));
    answer("free_of_a_stranger", release(0x1234000));
}
static void mixed_frees(void) {
    pointer memory = allocate(64 * MIB);
    answer("async_free_of_plain", release_async(memory));
    synchronise();
    taken("after");
    memory = allocate_async(64 * MIB);
    answer("plain_free_of_async", release(memory));
    taken("after_that");
}

static void mapped(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemAddressReserve, 10020, (pointer *, size_t, size_t, pointer, unsigned long long));
    FIND(cuMemMap, 10020, (pointer, size_t, size_t, unsigned long long, unsigned long long));
    FIND(cuMemUnmap, 10020, (pointer, size_t));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .location = {DEVICE, device}};
    unsigned long long handle;
    pointer at;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    must(cuMemAddressReserve(&at, 64 * MIB, 0, 0, 0), "cuMemAddressReserve");
    answer("map", cuMemMap(at, 64 * MIB, 0, handle, 0));
    answer("release", cuMemRelease(handle));
    taken("released_but_mapped");
    answer("unmap", cuMemUnmap(at, 64 * MIB));
    taken("unmapped");
}

static void managed(void) {
    FIND(cuMemAllocManaged, 6000, (pointer *, size_t, unsigned int));
    FIND(cuMemsetD8, 3020, (pointer, unsigned char, size_t));
    pointer memory;
    must(cuMemAllocManaged(&memory, 64 * MIB, 1), "cuMemAllocManaged");
    taken("untouched");
    must(cuMemsetD8(memory, 1, 64 * MIB), "cuMemsetD8");
    taken("set_on_the_card");
}
static void array(void) {
    FIND(cuArray3DCreate, 3020, (void **, const void *));
    struct shape shape = {.width = 1000, .height = 1000, .format = 0x20, .channels = 4};
    void *made;
    must(cuArray3DCreate(&made, &shape), "cuArray3DCreate");
    taken("1000_by_1000_of_16_bytes");
}

static void pitch(void) {
    FIND(cuMemAllocPitch, 3020, (pointer *, size_t *, size_t, size_t, unsigned int));
    static const size_t widths[] = {1, 513, 1000};
    for (int at = 0; at < 3; at++) {
        pointer memory;
        size_t found = 0;
        must(cuMemAllocPitch(&memory, &found, widths[at], 16, 4), "cuMemAllocPitch");
        printf("pitch_of_%zu %zu\n", widths[at], found);
    }
}

static const struct question questions[] = {
    {"small_allocations", small_allocations},
    {"odd_sizes", odd_sizes},
    {"nothing", nothing},
    {"mixed_frees", mixed_frees},
    {"mapped", mapped},
    {"managed", managed},
    {"array", array},
    {"pitch", pitch},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
