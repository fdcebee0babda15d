#include "limits.h"

#include <stdio.h>
#include <string.h>

/* Eight bits in two steps of four: 64 bytes of table, and a copy has some hundred bytes. */
static const uint32_t nibbles[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t vcuda_crc32c(uint32_t value, const void *data, size_t size) {
    const uint8_t *byte = data;
    value = ~value;
    for (; size; size--, byte++) {
        value ^= *byte;
        value = value >> 4 ^ nibbles[value & 15];
        value = value >> 4 ^ nibbles[value & 15];
    }
    return ~value;
}

/* The host may be writing this copy now: take it word by word, judge the taken one alone. */
static void take(void *to, const void *from, size_t size) {
    uint64_t *target = to;
    const uint64_t *source = from;
    for (size_t i = 0; i < size / sizeof *target; i++)
        target[i] = __atomic_load_n(&source[i], __ATOMIC_RELAXED);
}

static const char *judge(const struct vcuda_limits_copy *copy) {
    if (copy->magic != VCUDA_LIMITS_MAGIC)
        return "is no limits page";
    if (copy->abi_major != VCUDA_ABI_MAJOR)
        return "has the format of another version";
    if (copy->header_size < offsetof(struct vcuda_limits_copy, card) ||
        copy->card_size < sizeof(struct vcuda_card_limits) || copy->card_count > VCUDA_MAX_CARDS ||
        copy->size > VCUDA_COPY_SIZE || copy->size != copy->header_size + copy->card_count * (uint32_t)copy->card_size)
        return "has sizes out of bounds";
    const size_t at = offsetof(struct vcuda_limits_copy, crc);
    static const uint8_t zero[sizeof copy->crc];
    uint32_t crc = vcuda_crc32c(0, copy, at);
    crc = vcuda_crc32c(crc, zero, sizeof zero);
    crc = vcuda_crc32c(crc, (const uint8_t *)copy + at + sizeof zero, copy->size - at - sizeof zero);
    return crc == copy->crc ? NULL : "has a wrong checksum";
}

static void decode(const struct vcuda_limits_copy *copy, struct vcuda_limits_view *view) {
    memset(view, 0, sizeof *view);
    view->generation = copy->generation;
    view->heartbeat_ns = copy->heartbeat_ns;
    view->flags = copy->flags;
    view->card_count = copy->card_count;
    for (uint32_t i = 0; i < copy->card_count; i++) {
        struct vcuda_card_limits *card = &view->card[i];
        memcpy(card, (const uint8_t *)copy + copy->header_size + i * (size_t)copy->card_size, sizeof *card);
        if (!card->gain_q8)
            card->gain_q8 = 256;
        if (!card->co_active_q8)
            card->co_active_q8 = 256;
    }
}

const char *limits_read(const struct vcuda_limits *page, struct vcuda_limits_view *view) {
    _Alignas(8) struct vcuda_limits_copy copy[2];
    const char *fault[2];
    for (int i = 0; i < 2; i++) {
        take(&copy[i], &page->copy[i], sizeof copy[i]);
        fault[i] = judge(&copy[i]);
    }
    if (fault[0] && fault[1])
        return strcmp(fault[0], "is no limits page") ? fault[0] : fault[1];
    int newest = fault[0] || (!fault[1] && copy[1].generation >= copy[0].generation);
    decode(&copy[newest], view);
    return NULL;
}
