/* Which machine is this? See config.h for the keys. */
#define _GNU_SOURCE
#include "config.h"

#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_BYTES = 16384, KEY_BYTES = 64 };

struct model {
    const char *key, *name;
    int memory_mib, context_mib, unlisted_kib, sms, major, minor, clock_mhz, memory_clock_mhz, bus_bits, l2_mib,
        power_w, nvlinks;
};

/* Product facts from NVIDIA's data sheets; memory is what the driver reports as total. A context's size is what NVML
 * said of an H100, with what the card then has less beyond that; those of other cards are typical. */
static const struct model models[] = {
    {"h200", "NVIDIA H200", 143771, 528, 0, 132, 9, 0, 1980, 3201, 6144, 50, 700, 18},
    {"h100", "NVIDIA H100 80GB HBM3", 81559, 518, 5696, 132, 9, 0, 1980, 2619, 5120, 50, 700, 18},
    {"a100", "NVIDIA A100-SXM4-40GB", 40960, 418, 0, 108, 8, 0, 1410, 1215, 5120, 40, 400, 12},
    {"a10", "NVIDIA A10", 23028, 258, 0, 72, 8, 6, 1695, 6251, 384, 6, 150, 0},
    {"l4", "NVIDIA L4", 23034, 222, 0, 58, 8, 9, 2040, 6251, 192, 48, 72, 0},
    {"t4", "Tesla T4", 15360, 104, 0, 40, 7, 5, 1590, 5001, 256, 4, 70, 0},
    {"small", "Stand-in 16GB", 16384, 64, 0, 16, 8, 0, 1000, 1000, 256, 4, 50, 0},
};

static char file_text[FILE_BYTES];
static struct config config;
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

/* `standin.conf` beside the library that holds this very function. */
static void beside_library(char *path, size_t size) {
    Dl_info info;
    path[0] = '\0';
    if (!dladdr(&models, &info) || !info.dli_fname)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    int directory = slash ? (int)(slash - info.dli_fname) : 1;
    snprintf(path, size, "%.*s/standin.conf", directory, slash ? info.dli_fname : ".");
}

static void read_file(void) {
    char path[4096];
    const char *named = getenv("VCUDA_STANDIN_CONFIG");
    if (named)
        snprintf(path, sizeof path, "%s", named);
    else
        beside_library(path, sizeof path);
    FILE *file = path[0] ? fopen(path, "re") : NULL;
    if (!file)
        return;
    size_t got = fread(file_text, 1, sizeof file_text - 1, file);
    file_text[got] = '\0';
    fclose(file);
}

static const char *from_environment(const char *key) {
    char name[KEY_BYTES + 16] = "VCUDA_STANDIN_";
    size_t at = strlen(name);
    for (; *key && at < sizeof name - 1; key++)
        name[at++] = (char)(*key == '.' ? '_' : toupper((unsigned char)*key));
    name[at] = '\0';
    return getenv(name);
}

const char *config_text(const char *key) {
    static __thread char value[512];
    const char *set = from_environment(key);
    if (set)
        return set;
    size_t length = strlen(key);
    for (const char *line = file_text; line && *line; line = strchr(line, '\n')) {
        line += strspn(line, " \t\r\n");
        if (strncmp(line, key, length) != 0)
            continue;
        const char *equals = line + length + strspn(line + length, " \t");
        if (*equals != '=')
            continue;
        const char *start = equals + 1 + strspn(equals + 1, " \t");
        size_t bytes = strcspn(start, "\r\n#");
        while (bytes && isspace((unsigned char)start[bytes - 1]))
            bytes--;
        snprintf(value, sizeof value, "%.*s", (int)bytes, start);
        return value;
    }
    return NULL;
}

static int64_t number(const char *key, int64_t otherwise) {
    const char *text = config_text(key);
    return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

static const char *card_text(int index, const char *key) {
    char name[KEY_BYTES];
    snprintf(name, sizeof name, "card.%d.%s", index, key);
    const char *text = config_text(name);
    return text ? text : config_text(key);
}

static int64_t card_number(int index, const char *key, int64_t otherwise) {
    const char *text = card_text(index, key);
    return text && *text ? strtoll(text, NULL, 0) : otherwise;
}

static void write_uuid(struct card_config *card) {
    const char *kind = card->placed ? "MIG-GPU" : card->instance ? "MIG" : "GPU";
    int used = snprintf(card->uuid_text, sizeof card->uuid_text, "%s-", kind);
    for (int at = 0; at < 16; at++)
        used += snprintf(card->uuid_text + used, sizeof card->uuid_text - (size_t)used, "%s%02x",
                         at == 4 || at == 6 || at == 8 || at == 10 ? "-" : "", card->uuid[at]);
    if (card->placed)
        snprintf(card->uuid_text + used, sizeof card->uuid_text - (size_t)used, "/%d/%d", MIG_GI, MIG_CI);
}

/* The given UUID, or one that only the index decides: the same machine has the same cards in every process. */
static void set_uuid(struct card_config *card) {
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "card.%d.uuid", card->index);
    const char *given = config_text(key);
    for (int at = 0; at < 16; at++)
        card->uuid[at] = (unsigned char)((card->index + 1) * 37 + at * 101);
    card->instance = number("instances", 0) != 0;
    if (given) {
        card->instance = strncmp(given, "MIG-", 4) == 0;
        card->placed = strncmp(given, "MIG-GPU-", 8) == 0;
        if (card->instance || strncmp(given, "GPU-", 4) == 0)
            given += card->placed ? 8 : 4;
        for (int at = 0; at < 16 && *given; given++) {
            unsigned int byte;
            if (*given == '-' || sscanf(given, "%2x", &byte) != 1)
                continue;
            card->uuid[at++] = (unsigned char)byte;
            given++;
        }
    }
    for (int at = 0; at < 16; at++)
        card->parent[at] = card->instance && !card->placed ? card->uuid[at] ^ 0x5a : card->uuid[at];
    write_uuid(card);
}

/* " MIG 1g.16gb" behind the card's name, as the driver names an instance. */
static void name_instance(struct card_config *card) {
    size_t length = strlen(card->name);
    int64_t gib = (card->memory_bytes + (1 << 30) - 1) >> 30;
    snprintf(card->name + length, sizeof card->name - length, " MIG 1g.%dgb", (int)gib);
}

struct card_config config_parent(const struct card_config *instance) {
    struct card_config card = *instance;
    *strstr(card.name, " MIG ") = '\0';
    memcpy(card.uuid, card.parent, sizeof card.uuid);
    card.instance = card.placed = false;
    card.mig = true;
    card.memory_bytes *= 8; /* slices of memory on a card of seven instances */
    write_uuid(&card);
    return card;
}

static void set_links(struct card_config *card, int cards) {
    const char *common = config_text("link");
    char word[8];
    snprintf(word, sizeof word, "%s", common ? common : card->nvlinks ? "NV18" : "SYS");
    if (!common && card->nvlinks)
        snprintf(word, sizeof word, "NV%d", card->nvlinks % 100);
    char key[KEY_BYTES];
    snprintf(key, sizeof key, "card.%d.links", card->index);
    const char *row = config_text(key);
    for (int other = 0; other < cards; other++) {
        int taken = 0;
        if (row && sscanf(row, " %7s%n", card->link[other], &taken) == 1)
            row += taken;
        else
            snprintf(card->link[other], sizeof card->link[other], "%s", word);
        if (other == card->index)
            snprintf(card->link[other], sizeof card->link[other], "X");
    }
}

static void set_card(struct card_config *card, int index, int cards) {
    const char *key = card_text(index, "model");
    const struct model *model = &models[0];
    for (size_t at = 0; key && at < sizeof models / sizeof models[0]; at++)
        if (strcmp(models[at].key, key) == 0)
            model = &models[at];
    card->index = index;
    snprintf(card->name, sizeof card->name, "%s", model->name);
    card->memory_bytes = card_number(index, "memory_mib", model->memory_mib) << 20;
    card->context_bytes = card_number(index, "context_mib", model->context_mib) << 20;
    card->unlisted_bytes = card_number(index, "unlisted_kib", model->unlisted_kib) << 10;
    card->sms = (int)card_number(index, "sms", model->sms);
    card->major = model->major;
    card->minor = model->minor;
    card->clock_khz = model->clock_mhz * 1000;
    card->memory_clock_khz = model->memory_clock_mhz * 1000;
    card->bus_bits = model->bus_bits;
    card->l2_bytes = model->l2_mib << 20;
    card->power_w = model->power_w;
    card->nvlinks = model->nvlinks;
    card->mig = card_number(index, "mig", 0) != 0;
    card->lost = number("lost", -1) == index;
    card->pci_bus = 0x18U + (unsigned)index * 0x11U;
    snprintf(card->pci_text, sizeof card->pci_text, "00000000:%02X:00.0", card->pci_bus);
    char name[KEY_BYTES];
    snprintf(name, sizeof name, "card.%d.pci", index);
    const char *pci = config_text(name);
    unsigned int domain;
    if (pci && sscanf(pci, "%x:%x", &domain, &card->pci_bus) == 2)
        snprintf(card->pci_text, sizeof card->pci_text, "%s", pci);
    set_uuid(card);
    if (card->instance)
        name_instance(card);
    set_links(card, cards);
}

/* What calls cost, in ns, as measured on a host with an H100 and driver 580 (tests/data/cards). */
static const struct call_costs {
    const char *name;
    int64_t launch, host, record, gap, step, stamp;
} call_costs[] = {
    {"h100", 3600, 50000, 1000, 950, 32, 1250},
    {"free", 0, 0, 0, 0, 500, 0},
};

static const struct call_costs *costs_of(const char *name) {
    for (size_t at = 0; name && at < sizeof call_costs / sizeof call_costs[0]; at++)
        if (strcmp(call_costs[at].name, name) == 0)
            return &call_costs[at];
    return &call_costs[0];
}

static void set_costs(void) {
    const struct call_costs *costs = costs_of(config_text("costs"));
    config.launch_ns = number("launch_ns", costs->launch);
    config.reach_ns = config.launch_ns * number("reach_percent", 50) / 100;
    config.host_ns = number("host_ns", costs->host);
    config.record_ns = number("record_ns", costs->record);
    config.gap_ns = number("gap_ns", costs->gap);
    config.start_ns = number("start_ns", 0);
    config.step_ns = number("step_ns", costs->step);
    config.stamp_ns = number("stamp_ns", costs->stamp);
}

static void read_all(void) {
    read_file();
    int64_t cards = number("cards", 1);
    config.cards = (int)(cards < 0 ? 0 : cards > MAX_CARDS ? MAX_CARDS : cards);
    for (int index = 0; index < config.cards; index++)
        set_card(&config.card[index], index, config.cards);
    const char *state = config_text("state");
    if (state)
        snprintf(config.state, sizeof config.state, "%s", state);
    else
        snprintf(config.state, sizeof config.state, "/dev/shm/vcuda-standin-%u", (unsigned)getuid());
    const char *driver = config_text("driver");
    snprintf(config.driver, sizeof config.driver, "%s", driver ? driver : "");
    config.quantum_ns = number("quantum_us", 2000) * 1000;
    config.slice_ns = number("slice_us", config.quantum_ns / 1000) * 1000;
    config.switch_ns = number("switch_us", 0) * 1000;
    config.kernel_ns = number("kernel_us", 10) * 1000;
    config.load_ns = number("load_us", 0) * 1000;
    set_costs();
    config.module_bytes = number("module_kib", 2048) * 1024;
    config.callback = number("callback", 0) != 0;
    config.capture_ends = number("capture_ends", 0) != 0;
    config.pools = number("pools", 1) != 0;
    const char *turns = config_text("turns");
    config.whole_kernels = turns && strcmp(turns, "kernel") == 0;
}

const struct config *config_read(void) {
    pthread_once(&config_once, read_all);
    return &config;
}
