/* Allocates until the driver refuses, in any of the ways that take memory of the card. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"

#define MIB ((size_t)1 << 20)

struct properties {
    int type, handle_types, location_type, location_id;
    void *unused;
    unsigned char flags[8];
};

struct shape {
    size_t width, height, depth;
    int format;
    unsigned int channels, flags;
};

static int take(const char *way, size_t bytes, int card) {
    device_pointer pointer;
    if (strcmp(way, "pitch") == 0) {
        size_t pitch;
        return driver.cuMemAllocPitch(&pointer, &pitch, 1024, bytes / 1024, 4);
    }
    if (strcmp(way, "async") == 0)
        return driver.cuMemAllocAsync(&pointer, bytes, NULL);
    if (strcmp(way, "vmm") == 0) {
        struct properties properties = {.type = 1, .location_type = 1, .location_id = card};
        unsigned long long handle;
        return driver.cuMemCreate(&handle, bytes, &properties, 0);
    }
    if (strcmp(way, "array") == 0) {
        /* 1024 four-channel floats are a row of 16 KiB. */
        struct shape shape = {.width = 1024, .height = bytes / 16384, .format = 0x20, .channels = 4};
        void *array;
        return driver.cuArray3DCreate(&array, &shape);
    }
    if (strcmp(way, "managed") == 0) {
        int result = driver.cuMemAllocManaged(&pointer, bytes, 1);
        return result ? result : driver.cuMemPrefetchAsync(pointer, bytes, card, NULL);
    }
    return driver.cuMemAlloc(&pointer, bytes);
}

int run_alloc(int argc, char **argv) {
    int card = (int)option_number(argc, argv, "--card", 0), result;
    const char *way = option(argc, argv, "--way", "alloc");
    size_t step = (size_t)option_number(argc, argv, "--step", 64) * MIB;
    size_t most = (size_t)option_number(argc, argv, "--most", 1 << 20) * MIB, held = 0, left, total;
    long hold = option_number(argc, argv, "--hold", 0);
    use_card(card);
    must(driver.cuMemGetInfo(&left, &total), "cuMemGetInfo");
    printf("before free_mib %zu total_mib %zu\n", left / MIB, total / MIB);
    for (result = 0; held < most; held += step)
        if ((result = take(way, step, card)) != 0)
            break;
    must(driver.cuMemGetInfo(&left, &total), "cuMemGetInfo");
    printf("held_mib %zu error %d free_mib %zu total_mib %zu\n", held / MIB, result, left / MIB, total / MIB);
    if (hold > 0)
        sleep((unsigned int)hold);
    return 0;
}
