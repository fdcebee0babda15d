/* A process under the library's page code, driven line by line: each line of input is a command, and gets a line of
 * answer. Tests start several, kill them, and look at the pages. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attachment.h"
#include "accounts.h"
#include "limits.h"
#include "note.h"
#include "page.h"
#include "slots.h"

static void show_limits(void) {
    const struct vcuda_limits_view *view = vcuda_limits();
    if (!view)
        printf("none\n");
    else
        printf("%" PRIu64 " %" PRIu64 " %u %u %" PRIu64 " %u\n", view->generation, view->card[0].memory_limit,
               view->card[0].core_limit_q8, view->flags, view->heartbeat_ns, view->card_count);
}

static void show_crc(char *hex) {
    uint8_t data[4096];
    size_t size = 0;
    for (unsigned byte; size < sizeof data && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        data[size++] = (uint8_t)byte;
    printf("%u\n", vcuda_crc32c(0, data, size));
}

/* Charge and give back at random for ever, never holding what it did not get; says "over" if the limit is passed. */
static void hammer(int card, uint64_t unit, uint64_t limit, unsigned seed) {
    uint64_t held = 0;
    printf("hammering\n");
    fflush(stdout);
    for (;;) {
        uint64_t bytes = unit * (1 + (uint64_t)rand_r(&seed) % 8);
        if (rand_r(&seed) % 2 && vcuda_charge(card, bytes, limit)) {
            held += bytes;
        } else if (held) {
            uint64_t back = bytes < held ? bytes : held;
            vcuda_discharge(card, back);
            held -= back;
        }
        if (vcuda_slot()->charged[card] != held) {
            printf("lost\n");
            fflush(stdout);
        }
    }
}

/* What one thread of many does: attach, read limits, charge and give back. */
static void *work(void *argument) {
    uint64_t *wrong = argument;
    if (vcuda_attach() != VCUDA_ATTACHED)
        *wrong += 1;
    for (int i = 0; i < 20000; i++) {
        const struct vcuda_limits_view *view = vcuda_limits();
        if (view->card[0].memory_limit != view->card[0].context_reserve) /* written equal, in one copy */
            *wrong += 1;
        if (vcuda_charge(0, 512, UINT64_MAX))
            vcuda_discharge(0, 512);
        if (i % 5000 == 0)
            vcuda_repair(0);
    }
    return NULL;
}

static void threads(int count) {
    pthread_t thread[64];
    uint64_t wrong[64] = {0}, sum = 0;
    count = count < 64 ? count : 64;
    for (int i = 0; i < count; i++)
        pthread_create(&thread[i], NULL, work, &wrong[i]);
    for (int i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
        sum += wrong[i];
    }
    printf("%" PRIu64 " %" PRIu64 "\n", sum, vcuda_charged(0));
}

/* `count` notes one after the other, each with its number in its own fields. */
static void notes(int count) {
    for (int i = 1; i <= count; i++) {
        struct vcuda_note note = {.code = VCUDA_NOTE_MEMORY_REFUSED, .bytes = (uint64_t)i, .used = (uint64_t)i * 2};
        snprintf(note.text, sizeof note.text, "note %d", i);
        note_put(vcuda_usage(), &note);
    }
    printf("%d\n", count);
}

/* A child that runs one command of its own and ends. */
static void obey(char *line);
static void in_child(char *line) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        obey(line);
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static void close_all(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 3; fd < (int)limit.rlim_cur && fd < 4096; fd++)
        close(fd);
    printf("closed\n");
}

static void time_attach_loads(long count) {
    uint64_t start = vcuda_now_ns(), sum = 0;
    for (long i = 0; i < count; i++)
        sum += vcuda_limits()->card[0].memory_limit;
    uint64_t loads = vcuda_now_ns() - start;
    start = vcuda_now_ns();
    for (long i = 0; i < count; i++) {
        vcuda_charge(0, 512, UINT64_MAX);
        vcuda_discharge(0, 512);
    }
    printf("%.2f %.2f %d\n", (double)loads / (double)count, (double)(vcuda_now_ns() - start) / (double)count, sum != 0);
}

static void *obey_all(void *unused);

/* The process goes on, and its first thread is gone: /proc shows a zombie. */
static void end_first_thread(void) {
    pthread_t rest;
    printf("left\n");
    fflush(stdout);
    if (pthread_create(&rest, NULL, obey_all, NULL) == 0)
        pthread_exit(NULL);
}

static void obey(char *line) {
    int card = 0;
    uint64_t bytes = 0, limit = 0;
    unsigned seed = 0;
    char *argument = strchr(line, ' ');
    if (argument)
        sscanf(argument, "%d %" SCNu64 " %" SCNu64 " %u", &card, &bytes, &limit, &seed);
    size_t length = argument ? (size_t)(argument - line) : strcspn(line, "\n");
    char verb[32] = {0};
    memcpy(verb, line, length < sizeof verb ? length : sizeof verb - 1);
    if (!strcmp(verb, "attach"))
        printf("%d\n", (int)vcuda_attach());
    else if (!strcmp(verb, "limits"))
        show_limits();
    else if (!strcmp(verb, "slot"))
        printf("%d\n", vcuda_slot() ? (int)(vcuda_slot() - vcuda_usage()->slot) : -1);
    else if (!strcmp(verb, "charge"))
        printf("%d\n", vcuda_charge(card, bytes, limit));
    else if (!strcmp(verb, "taken"))
        printf("%d\n", vcuda_charge_taken(card, bytes));
    else if (!strcmp(verb, "discharge"))
        printf("%d\n", (vcuda_discharge(card, bytes), 0));
    else if (!strcmp(verb, "charged"))
        printf("%" PRIu64 "\n", vcuda_charged(card));
    else if (!strcmp(verb, "repair"))
        printf("%d\n", (vcuda_repair(card), 0));
    else if (!strcmp(verb, "reap"))
        printf("%u\n", vcuda_reap());
    else if (!strcmp(verb, "unknown"))
        printf("%d\n", (vcuda_count_unknown(argument ? argument + 1 : ""), 0));
    else if (!strcmp(verb, "notes"))
        notes(card);
    else if (!strcmp(verb, "crc"))
        show_crc(argument ? argument + 1 : line + length);
    else if (!strcmp(verb, "hammer"))
        hammer(card, bytes, limit, seed);
    else if (!strcmp(verb, "close"))
        close_all();
    else if (!strcmp(verb, "time"))
        time_attach_loads(card);
    else if (!strcmp(verb, "threads"))
        threads(card);
    else if (!strcmp(verb, "fork"))
        in_child(argument + 1);
    else if (!strcmp(verb, "leave"))
        end_first_thread();
    else
        printf("what?\n");
    fflush(stdout);
}

static void *obey_all(void *unused) {
    static char line[9000];
    (void)unused;
    while (fgets(line, sizeof line, stdin))
        obey(line);
    exit(0);
}

int main(void) {
    obey_all(NULL);
}
