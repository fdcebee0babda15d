/* The end of a process: see guesses.h. */
#include "guesses.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Ends before its child, which was forked with all of the driver's descriptors and touches none. */
static void killed_with_a_child(void) {
    enum { SETTLE_MS = 500 };
    int ready[2];
    pid_t child = 0;
    must(pipe(ready), "pipe");
    pid_t victim = fork();
    if (victim == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", ready[1]);
        execl("/proc/self/exe", "guesses", "victim", number, (char *)NULL);
        _exit(1);
    }
    close(ready[1]);
    if (read(ready[0], &child, sizeof child) != sizeof child)
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

static const struct question questions[] = {
    {"killed_with_a_child", killed_with_a_child},
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "victim") == 0) {
        prepare();
        be_killed(atoi(argv[2]));
        return 1;
    }
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
