/* Turns of several processes on a card: each check prints a line if it fails; the program's answer is how many did.
 * Locks are of open files, so one process may stand for several. */
#define _GNU_SOURCE
#include "cuda/turn.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define BEGIN UINT64_C(100000000000)
#define SECOND UINT64_C(1000000000)

static char gate[] = "/tmp/unit-turn-XXXXXX";

static void who_has_waited_longest_is_next(void) {
    struct turn first = {0}, second = {0}, third = {0};
    CHECK(turn_take(&first, gate, BEGIN) && turn_is_held(&first));
    CHECK(!turn_take(&second, gate, BEGIN + 1) && !turn_take(&third, gate, BEGIN + 2));
    CHECK(turn_give(&first) && !turn_is_held(&first));
    CHECK(!turn_take(&third, gate, BEGIN + 3), "the second has waited longer");
    CHECK(!turn_take(&first, gate, BEGIN + 3), "so has the third than who comes again");
    CHECK(turn_take(&second, gate, BEGIN + 3));
    turn_give(&second);
    CHECK(!turn_take(&first, gate, BEGIN + 4) && turn_take(&third, gate, BEGIN + 4));
    turn_give(&third);
    CHECK(turn_take(&first, gate, BEGIN + 5));
    turn_give(&first);
}

static void a_turn_is_over_some_time_after_its_first_launch_if_another_one_waits(void) {
    struct turn holder = {0}, other = {0};
    turn_take(&holder, gate, BEGIN);
    CHECK(!turn_is_over(&holder, 0, BEGIN + 10 * TURN_NS), "it has launched nothing");
    turn_use(&holder, BEGIN);
    CHECK(!turn_is_over(&holder, 0, BEGIN + TURN_NS), "nobody waits: it begins anew");
    turn_take(&other, gate, BEGIN + TURN_NS);
    CHECK(!turn_is_over(&holder, 0, BEGIN + 2 * TURN_NS - 1));
    CHECK(turn_is_over(&holder, 0, BEGIN + 2 * TURN_NS));
    CHECK(!turn_is_over(&holder, TURN_NS, BEGIN + 3 * TURN_NS / 2 - 1), "most of what comes next lies within it");
    CHECK(turn_is_over(&holder, TURN_NS, BEGIN + 3 * TURN_NS / 2), "or beyond it");
    turn_extend(&holder, BEGIN + TURN_NS, BEGIN + 2 * TURN_NS);
    turn_extend(&holder, BEGIN + TURN_NS, BEGIN + 2 * TURN_NS); /* another thread saw the same */
    CHECK(!turn_is_over(&holder, 0, BEGIN + 3 * TURN_NS - 1), "the gate was closed for a while of it");
    CHECK(turn_is_over(&holder, 0, BEGIN + 3 * TURN_NS));
    turn_give(&other);
    turn_give(&holder);
}

static void who_waits_no_more_is_in_nobodys_way(void) {
    struct turn holder = {0}, first = {0}, second = {0};
    turn_take(&holder, gate, BEGIN);
    turn_take(&first, gate, BEGIN + 1);
    turn_take(&second, gate, BEGIN + 2);
    turn_give(&holder);
    turn_give(&first);
    CHECK(turn_take(&second, gate, BEGIN + 3));
    turn_give(&second);
}

static void who_goes_ahead_has_its_place_again_when_it_comes_back_soon(void) {
    struct turn holder = {0}, first = {0}, second = {0};
    turn_take(&holder, gate, BEGIN);
    turn_take(&first, gate, BEGIN + 1);
    turn_went_ahead(&first, false, BEGIN + 2);
    CHECK(!turn_take(&second, gate, BEGIN + 3) && !turn_take(&first, gate, BEGIN + 4));
    turn_give(&holder);
    CHECK(!turn_take(&second, gate, BEGIN + 5), "the first has waited longer, though it went ahead once");
    CHECK(turn_take(&first, gate, BEGIN + 5));
    turn_give(&first);
    CHECK(turn_take(&second, gate, BEGIN + 6) && !turn_take(&first, gate, BEGIN + 7));
    turn_went_ahead(&first, false, BEGIN + 8);
    CHECK(!turn_take(&holder, gate, BEGIN + 9) && !turn_take(&first, gate, BEGIN + 8 + TURN_AHEAD_NS));
    turn_give(&second);
    CHECK(turn_take(&holder, gate, BEGIN + 10 + TURN_AHEAD_NS), "who comes back late waits anew");
    turn_give(&first);
    turn_give(&holder);
}

static void a_turn_that_is_kept_is_not_waited_for_until_it_was_had(void) {
    struct turn holder = {0}, waiting = {0};
    const uint64_t stood = TURN_PATIENCE_NS / 2, late = BEGIN + TURN_PATIENCE_NS + stood;
    turn_take(&holder, gate, BEGIN);
    CHECK(!turn_waits_in_vain(&waiting, late), "it does not wait");
    turn_take(&waiting, gate, BEGIN);
    turn_extend(&waiting, BEGIN, BEGIN + stood);
    turn_extend(&waiting, BEGIN, BEGIN + stood); /* another thread saw the same */
    CHECK(!turn_waits_in_vain(&waiting, late - 1) && turn_waits_in_vain(&waiting, late));
    turn_went_ahead(&waiting, false, late);
    CHECK(turn_waits_in_vain(&waiting, late + 1) && turn_waits_in_vain(&waiting, late + SECOND));
    turn_give(&holder);
    CHECK(turn_take(&waiting, gate, late + SECOND) && !turn_waits_in_vain(&waiting, late + SECOND));
    turn_give(&waiting);
}

static void work_meets_others_from_the_end_of_its_turn_on(void) {
    struct turn turn = {0}, never = {0};
    CHECK(!turn_others_ran(&never, BEGIN), "there are no turns");
    turn_take(&turn, gate, BEGIN);
    CHECK(turn_others_ran(&turn, BEGIN), "of the turn before something may be left");
    CHECK(!turn_others_ran(&turn, BEGIN + TURN_LEFT_NS));
    turn_give(&turn);
    CHECK(turn_others_ran(&turn, BEGIN + TURN_LEFT_NS), "what it left in flight meets the next one's");
}

static void a_killed_process_leaves_its_turn_to_the_next(void) {
    struct turn next = {0};
    int ready[2];
    char byte;
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct turn own = {0};
        if (turn_take(&own, gate, BEGIN) && write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!turn_take(&next, gate, BEGIN + 1));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(turn_take(&next, gate, BEGIN + 2));
    turn_give(&next);
}

/* A fork's child has its parent's descriptors: it lets go of them, and the turn stays its parent's. */
static void a_child_of_a_fork_takes_nothing_from_its_parent(void) {
    struct turn held = {0}, next = {0};
    turn_take(&held, gate, BEGIN);
    pid_t child = fork();
    if (child == 0) {
        turn_forget(&held);
        _exit(turn_is_held(&held) || turn_take(&held, gate, BEGIN + 1));
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(!turn_take(&next, gate, BEGIN + 2));
    turn_give(&held);
    CHECK(turn_take(&next, gate, BEGIN + 3));
    turn_give(&next);
}

static void a_program_that_closes_our_descriptor_keeps_what_it_opens_there(void) {
    struct turn held = {0}, next = {0};
    turn_take(&held, gate, BEGIN);
    int number = held.fd;
    close(number);
    CHECK(dup2(STDERR_FILENO, number) == number);
    CHECK(turn_take(&next, gate, BEGIN + 1), "the lock went with the descriptor");
    turn_use(&held, BEGIN);
    CHECK(turn_is_over(&held, 0, BEGIN + TURN_NS));
    turn_give(&held);
    CHECK(fcntl(number, F_GETFD) >= 0, "it is the program's now");
    close(number);
    turn_give(&next);
}

static void without_a_gate_nobody_waits(void) {
    struct turn turn = {0};
    CHECK(turn_take(&turn, "/nonexistent/gate", BEGIN) && !turn_is_held(&turn));
    CHECK(turn_take(&turn, "/nonexistent/gate", BEGIN + 1));
    turn_give(&turn);
}

int main(void) {
    int fd = mkstemp(gate);
    CHECK(fd >= 0 && fchmod(fd, 0444) == 0);
    who_has_waited_longest_is_next();
    a_turn_is_over_some_time_after_its_first_launch_if_another_one_waits();
    who_waits_no_more_is_in_nobodys_way();
    who_goes_ahead_has_its_place_again_when_it_comes_back_soon();
    a_turn_that_is_kept_is_not_waited_for_until_it_was_had();
    work_meets_others_from_the_end_of_its_turn_on();
    a_killed_process_leaves_its_turn_to_the_next();
    a_child_of_a_fork_takes_nothing_from_its_parent();
    a_program_that_closes_our_descriptor_keeps_what_it_opens_there();
    without_a_gate_nobody_waits();
    unlink(gate);
    return checked();
}
