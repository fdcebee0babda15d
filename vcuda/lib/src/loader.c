/* The one file that knows the dynamic loader.
 *
 * dlopen lives in libc since glibc 2.34 and in libdl before. Needing libdl would cost every process of the container
 * a mapping, and binding to the newer version would keep us from older systems. So the reference is weak and to the
 * oldest version, which both provide; where a program of an old system has not loaded libdl, dlopen is looked up in
 * what it has loaded, and libdl is opened by what libc of that age has inside.
 */
#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

extern void *oldest_dlopen(const char *, int) __attribute__((weak));
extern void *oldest_dlsym(void *, const char *) __attribute__((weak));
__asm__(".symver oldest_dlopen, dlopen@" OLDEST);
__asm__(".symver oldest_dlsym, dlsym@" OLDEST);

typedef void *open_fn(const char *, int);
typedef void *find_fn(void *, const char *);

struct search {
    const char *name;
    void *found;
};

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* Look a defined function up in one object's GNU hash table. */
static void *find_in_table(uintptr_t base, const uint32_t *table, const ElfW(Sym) * symbols, const char *strings,
                           const char *name) {
    uint32_t buckets = table[0], first = table[1], words = table[2];
    const uint32_t *bucket = table + 4 + words * (sizeof(ElfW(Addr)) / sizeof *table);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = gnu_hash(name);
    uint32_t index = buckets ? bucket[hash % buckets] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t other = chain[index - first];
        const ElfW(Sym) *symbol = &symbols[index];
        if ((other | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF && !strcmp(strings + symbol->st_name, name))
            return (void *)(base + symbol->st_value);
        if (other & 1)
            return NULL;
    }
}

static int search_object(struct dl_phdr_info *info, size_t size, void *argument) {
    struct search *search = argument;
    (void)size;
    const uint32_t *table = NULL;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        for (; entry->d_tag != DT_NULL; entry++) {
            /* glibc has relocated these in place, but for the kernel's own object. */
            uintptr_t value = entry->d_un.d_ptr;
            if (value < info->dlpi_addr)
                value += info->dlpi_addr;
            if (entry->d_tag == DT_GNU_HASH)
                table = (const uint32_t *)value;
            else if (entry->d_tag == DT_SYMTAB)
                symbols = (const ElfW(Sym) *)value;
            else if (entry->d_tag == DT_STRTAB)
                strings = (const char *)value;
        }
    }
    if (table && symbols && strings)
        search->found = find_in_table(info->dlpi_addr, table, symbols, strings, search->name);
    return search->found != NULL;
}

/* A function of any object that is loaded. */
static void *find_loaded(const char *name) {
    struct search search = {.name = name};
    dl_iterate_phdr(search_object, &search);
    return search.found;
}

static void *find_or_load(const char *name) {
    void *found = find_loaded(name);
    if (found)
        return found;
    open_fn *inner = (open_fn *)find_loaded("__libc_dlopen_mode"); /* libc before 2.34 */
    if (inner && inner("libdl.so.2", RTLD_NOW | 0x80000000))
        found = find_loaded(name);
    return found;
}

void *loader_open(const char *path) {
    open_fn *function = oldest_dlopen ? oldest_dlopen : (open_fn *)find_or_load("dlopen");
    return function ? function(path, RTLD_LAZY | RTLD_LOCAL) : NULL;
}

void *loader_find(void *handle, const char *name) {
    static find_fn *cached;
    find_fn *function = oldest_dlsym ? oldest_dlsym : __atomic_load_n(&cached, __ATOMIC_RELAXED);
    if (!function) {
        function = (find_fn *)find_or_load("dlsym");
        __atomic_store_n(&cached, function, __ATOMIC_RELAXED);
    }
    return function ? function(handle, name) : NULL;
}

struct place_search {
    uintptr_t inside;
    struct extent found;
};

static int search_place(struct dl_phdr_info *info, size_t size, void *argument) {
    struct place_search *search = argument;
    struct extent extent = {UINTPTR_MAX, 0};
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type != PT_LOAD)
            continue;
        extent.from = from < extent.from ? from : extent.from;
        extent.to = to > extent.to ? to : extent.to;
    }
    if (search->inside < extent.from || search->inside >= extent.to)
        return 0;
    search->found = extent;
    return 1;
}

struct extent loader_extent(const void *inside) {
    struct place_search search = {.inside = (uintptr_t)inside};
    dl_iterate_phdr(search_place, &search);
    return search.found;
}

struct word_search {
    const char *const *words;
    unsigned found;
};

static int search_words(struct dl_phdr_info *info, size_t size, void *argument) {
    struct word_search *search = argument;
    (void)size;
    for (unsigned i = 0; i < search->found; i++)
        if (strstr(info->dlpi_name, search->words[i]))
            search->found = i;
    return search->found == 0;
}

unsigned loader_first_loaded(const char *const *words, unsigned count) {
    struct word_search search = {words, count};
    dl_iterate_phdr(search_words, &search);
    return search.found;
}
