/* The end of a process: see guesses.h. */
#include "guesses.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ends before its child, which was forked with all of the driver's descriptors and touches none. */
static void killed_with_a_child(void) {
    enum { SETTLE_MS = 500 };
    int ready;
    pid_t child = 0;
    pid_t victim = run_victim(&ready);
    if (read(ready, &child, sizeof child) != sizeof child)
        must(1, "the victim");
    kill(victim, SIGKILL);
    waitpid(victim, NULL, 0);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_alive");
    kill(child, SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = SETTLE_MS * 1000000L}, NULL);
    taken("its_child_killed_too");
}
static void be_killed(int ready) {
    allocate(64 * MIB);
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    if (write(ready, &child, sizeof child) == sizeof child)
        for (;;)
            pause();
}

/* In a handler that was registered before cuInit, and so runs after what that registered. */
static int (*ask_at_exit)(size_t *, size_t *);
static void at_exit(void) {
    size_t left, total;
    if (ask_at_exit)
        answer("cuMemGetInfo_at_exit", ask_at_exit(&left, &total));
}
static void called_at_exit(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    ask_at_exit = cuMemGetInfo;
}
static void forked(void) {
    FIND(cuMemGetInfo, 3020, (size_t *, size_t *));
    FIND(cuInit, 2000, (unsigned));
    for (int again = 0; again < 2; again++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            size_t left, total;
            alarm(5);
            _exit(again ? cuInit(0) : cuMemGetInfo(&left, &total));
        }
        waitpid(child, &status, 0);
        answer(again ? "cuInit_in_a_child" : "cuMemGetInfo_in_a_child",
               WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
}

static const struct question questions[] = {
    {"killed_with_a_child", killed_with_a_child},
    {"called_at_exit", called_at_exit},
    {"forked", forked},
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        prepare();
        be_killed(atoi(argv[2]));
        return 1;
    }
    atexit(at_exit);
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
