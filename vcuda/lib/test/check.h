/* What a unit program counts: each check that fails prints a line, and goes on. */
#ifndef VCUDA_TEST_CHECK_H
#define VCUDA_TEST_CHECK_H

#include <stdio.h>

static int failures;

/* CHECK(condition) or CHECK(condition, format, ...): the format says what was there instead. */
#define CHECK(condition, ...)                                                                                          \
    do                                                                                                                 \
        if (!(condition)) {                                                                                            \
            failures++;                                                                                                \
            printf("%s:%d %s", __FILE__, __LINE__, #condition);                                                        \
            printf(" " __VA_ARGS__);                                                                                   \
            printf("\n");                                                                                              \
        }                                                                                                              \
    while (0)

/* What main returns: the program says that all hold, or how many failed. */
static inline int checked(void) {
    printf(failures ? "%d failed\n" : "all hold\n", failures);
    return failures != 0;
}

#endif
