// Names of nodes in a scheduler's questions and answers, for admission/extender/node_names.py: thousands of them a
// question, which it knows by their places in a table.
//
// Names lie one after the other in ``texts``; that at place n begins at ``starts[n]`` and ends at ``starts[n + 1]``. No
// name holds a quotation mark, a backslash or a control character, so each is written in JSON as it is.
#include <stdint.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))
#define MIX UINT64_C(0x9e3779b97f4a7c15)

struct names {
    const char *texts;
    const int64_t *starts;
    int32_t *slots; // place + 1, 0 where free
    uint64_t mask;  // slots less one; there are twice as many as names, or more
};

static uint64_t hashed(const char *name, int64_t length) {
    uint64_t hash = (uint64_t)length;
    for (; length > 0; name += 8, length -= 8) {
        uint64_t part = 0;
        memcpy(&part, name, length < 8 ? (size_t)length : 8);
        hash = (hash ^ part) * MIX;
        hash ^= hash >> 32;
    }
    return hash;
}

// The slot of that name, or the free one where it belongs.
static uint64_t slot_of(const struct names *names, const char *name, int64_t length) {
    uint64_t slot = hashed(name, length) & names->mask;
    for (; names->slots[slot]; slot = (slot + 1) & names->mask) {
        const int64_t *start = names->starts + names->slots[slot] - 1;
        if (start[1] - start[0] == length && !memcmp(names->texts + start[0], name, (size_t)length))
            break;
    }
    return slot;
}

PUBLIC void vcuda_index_names(int32_t count, const char *texts, const int64_t *starts, int32_t *slots, uint64_t mask);
PUBLIC int32_t vcuda_read_names(const char *text, int64_t length, int32_t count, const char *texts,
                                const int64_t *starts, const int32_t *slots, uint64_t mask, uint8_t *seen,
                                int32_t *places);
PUBLIC int64_t vcuda_write_names(int32_t count, const int32_t *places, const char *texts, const int64_t *starts,
                                 const char *before, const uint8_t *which, const char *ends, const int32_t *end_starts,
                                 char *out);

// Fill ``slots``, which are all free. A place without a name, between others, has no slot.
void vcuda_index_names(int32_t count, const char *texts, const int64_t *starts, int32_t *slots, uint64_t mask) {
    struct names names = {texts, starts, slots, mask};
    for (int32_t place = 0; place < count; place++) {
        int64_t length = starts[place + 1] - starts[place];
        if (length)
            slots[slot_of(&names, texts + starts[place], length)] = place + 1;
    }
}

// Read a JSON array of names without spaces between them; returns how many there are and puts the place of each into
// ``places``, which has room for ``count``. -1 for any other text, for a name that is not in the table, and for one
// that comes twice. ``seen``: a zero for each place.
int32_t vcuda_read_names(const char *text, int64_t length, int32_t count, const char *texts, const int64_t *starts,
                         const int32_t *slots, uint64_t mask, uint8_t *seen, int32_t *places) {
    struct names names = {texts, starts, (int32_t *)slots, mask};
    const char *at = text + 1, *end = text + length;
    int32_t found = 0;
    if (length < 4 || *text != '[')
        return -1;
    for (;; at++) { // past the comma
        if (end - at < 3 || *at++ != '"')
            return -1;
        const char *quote = memchr(at, '"', (size_t)(end - at));
        if (!quote || quote == at || end - quote < 2)
            return -1;
        int32_t place = slots[slot_of(&names, at, quote - at)] - 1;
        if (place < 0 || seen[place] || found == count)
            return -1;
        seen[place] = 1;
        places[found++] = place;
        at = quote + 1;
        if (*at == ']')
            return at + 1 == end ? found : -1;
        if (*at != ',')
            return -1;
    }
}

// Write ``before``, a name and its end for each place; the ends lie one after the other, ``which`` says whose is which.
// Returns the bytes written.
int64_t vcuda_write_names(int32_t count, const int32_t *places, const char *texts, const int64_t *starts,
                          const char *before, const uint8_t *which, const char *ends, const int32_t *end_starts,
                          char *out) {
    size_t first = strlen(before);
    char *to = out;
    for (int32_t at = 0; at < count; at++) {
        const int64_t *start = starts + places[at];
        const int32_t *end = end_starts + which[at];
        size_t length = (size_t)(start[1] - start[0]), rest = (size_t)(end[1] - end[0]);
        memcpy(to, before, first);
        memcpy(to + first, texts + start[0], length);
        memcpy(to + first + length, ends + end[0], rest);
        to += first + length + rest;
    }
    return to - out;
}
