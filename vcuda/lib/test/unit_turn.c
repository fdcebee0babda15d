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

/* It launches at once. */
static bool take(struct turn *turn, uint64_t now) {
    bool has = turn_take(turn, gate, now);
    if (has)
        turn_let_go(turn);
    return has;
}

static bool give(struct turn *turn) {
    return turn_give(turn, turn_taken_at(turn), BEGIN);
}

static void who_has_waited_longest_is_next(void) {
    struct turn first = {0}, second = {0}, third = {0};
    CHECK(take(&first, BEGIN) && turn_is_held(&first));
    CHECK(!take(&second, BEGIN + 1) && !take(&third, BEGIN + 2));
    CHECK(give(&first) && !turn_is_held(&first));
    CHECK(!take(&third, BEGIN + 3), "the second has waited longer");
    CHECK(!take(&first, BEGIN + 3), "so has the third than who comes again");
    CHECK(take(&second, BEGIN + 3));
    give(&second);
    CHECK(!take(&first, BEGIN + 4) && take(&third, BEGIN + 4));
    give(&third);
    CHECK(take(&first, BEGIN + 5));
    give(&first);
}

static void a_turn_is_over_some_time_after_its_first_launch_if_another_one_waits(void) {
    struct turn holder = {0}, other = {0};
    take(&holder, BEGIN);
    CHECK(!turn_is_over(&holder, 0, BEGIN + 10 * TURN_NS), "it has launched nothing");
    turn_use(&holder, BEGIN);
    CHECK(!turn_is_over(&holder, 0, BEGIN + TURN_NS), "nobody waits: it begins anew");
    take(&other, BEGIN + TURN_NS);
    CHECK(!turn_is_over(&holder, 0, BEGIN + 2 * TURN_NS - 1));
    CHECK(turn_is_over(&holder, 0, BEGIN + 2 * TURN_NS));
    CHECK(!turn_is_over(&holder, TURN_NS, BEGIN + 3 * TURN_NS / 2 - 1), "most of what comes next lies within it");
    CHECK(turn_is_over(&holder, TURN_NS, BEGIN + 3 * TURN_NS / 2), "or beyond it");
    turn_extend(&holder, BEGIN + TURN_NS, BEGIN + 2 * TURN_NS);
    turn_extend(&holder, BEGIN + TURN_NS, BEGIN + 2 * TURN_NS); /* another thread saw the same */
    CHECK(!turn_is_over(&holder, 0, BEGIN + 3 * TURN_NS - 1), "the gate was closed for a while of it");
    CHECK(turn_is_over(&holder, 0, BEGIN + 3 * TURN_NS));
    turn_forget(&other);
    give(&holder);
}

static void who_waits_no_more_is_in_nobodys_way(void) {
    struct turn holder = {0}, first = {0}, second = {0};
    take(&holder, BEGIN);
    take(&first, BEGIN + 1);
    take(&second, BEGIN + 2);
    give(&holder);
    turn_forget(&first);
    CHECK(take(&second, BEGIN + 3));
    give(&second);
}

static void who_goes_ahead_has_its_place_again_when_it_comes_back_soon(void) {
    struct turn holder = {0}, first = {0}, second = {0};
    take(&holder, BEGIN);
    take(&first, BEGIN + 1);
    turn_went_ahead(&first, false, BEGIN + 2);
    CHECK(!take(&second, BEGIN + 3) && !take(&first, BEGIN + 4));
    give(&holder);
    CHECK(!take(&second, BEGIN + 5), "the first has waited longer, though it went ahead once");
    CHECK(take(&first, BEGIN + 5));
    give(&first);
    CHECK(take(&second, BEGIN + 6) && !take(&first, BEGIN + 7));
    turn_went_ahead(&first, false, BEGIN + 8);
    CHECK(!take(&holder, BEGIN + 9) && !take(&first, BEGIN + 8 + TURN_AHEAD_NS));
    give(&second);
    CHECK(take(&holder, BEGIN + 10 + TURN_AHEAD_NS), "who comes back late waits anew");
    turn_forget(&first);
    give(&holder);
}

static void a_turn_that_is_kept_is_not_waited_for_until_it_was_had(void) {
    struct turn holder = {0}, waiting = {0};
    const uint64_t stood = TURN_PATIENCE_NS / 2, late = BEGIN + TURN_PATIENCE_NS + stood;
    take(&holder, BEGIN);
    CHECK(!turn_waits_in_vain(&waiting, late), "it does not wait");
    take(&waiting, BEGIN);
    turn_extend(&waiting, BEGIN, BEGIN + stood);
    turn_extend(&waiting, BEGIN, BEGIN + stood); /* another thread saw the same */
    CHECK(!turn_waits_in_vain(&waiting, late - 1) && turn_waits_in_vain(&waiting, late));
    turn_went_ahead(&waiting, false, late);
    CHECK(turn_waits_in_vain(&waiting, late + 1) && turn_waits_in_vain(&waiting, late + SECOND));
    give(&holder);
    CHECK(take(&waiting, late + SECOND) && !turn_waits_in_vain(&waiting, late + SECOND));
    give(&waiting);
}

/* One thread has found the turn its process's and is about to launch; another one finds that it is over. */
static void a_turn_is_kept_for_a_launch_that_is_on_its_way(void) {
    struct turn held = {0}, next = {0};
    CHECK(turn_take(&held, gate, BEGIN) && !take(&next, BEGIN + 1));
    CHECK(!turn_give(&held, BEGIN, BEGIN + 2) && turn_is_held(&held) && !take(&next, BEGIN + 2));
    turn_let_go(&held);
    CHECK(turn_give(&held, BEGIN, BEGIN + 3) && take(&next, BEGIN + 3));
    CHECK(give(&next) && turn_take(&held, gate, BEGIN + 4) && !turn_give(&held, BEGIN + 4, BEGIN + 5));
    CHECK(turn_hold(&held), "it is its turn still");
    CHECK(turn_give(&held, BEGIN + 4, BEGIN + 5 + TURN_LAUNCH_NS), "but not for as long as it may load code");
    CHECK(!turn_hold(&held) && take(&next, BEGIN + 6 + TURN_LAUNCH_NS));
    give(&next);
}

/* Two threads find the same turn over. */
static void who_comes_late_gives_no_other_turn_and_no_place(void) {
    struct turn own = {0}, other = {0};
    CHECK(take(&own, BEGIN) && turn_give(&own, BEGIN, BEGIN + 1) && !turn_give(&own, BEGIN, BEGIN + 1));
    CHECK(take(&own, BEGIN + 2) && !turn_give(&own, BEGIN, BEGIN + 3) && turn_is_held(&own));
    CHECK(!take(&other, BEGIN + 3) && give(&own) && take(&other, BEGIN + 4) && !take(&own, BEGIN + 5));
    CHECK(!turn_give(&own, BEGIN + 2, BEGIN + 6) && own.since == BEGIN + 5, "it keeps its place");
    give(&other);
    CHECK(take(&own, BEGIN + 7));
    give(&own);
}

static void work_meets_others_from_the_end_of_its_turn_on(void) {
    struct turn turn = {0}, never = {0};
    CHECK(!turn_others_ran(&never, BEGIN), "there are no turns");
    take(&turn, BEGIN);
    CHECK(turn_others_ran(&turn, BEGIN), "of the turn before something may be left");
    CHECK(!turn_others_ran(&turn, BEGIN + TURN_LEFT_NS));
    give(&turn);
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
        if (take(&own, BEGIN) && write(ready[1], "x", 1) == 1)
            pause();
        _exit(1);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(!take(&next, BEGIN + 1));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(take(&next, BEGIN + 2));
    give(&next);
}

/* A fork's child has its parent's descriptors: it lets go of them, and the turn stays its parent's. */
static void a_child_of_a_fork_takes_nothing_from_its_parent(void) {
    struct turn held = {0}, next = {0};
    take(&held, BEGIN);
    pid_t child = fork();
    if (child == 0) {
        turn_forget(&held);
        _exit(turn_is_held(&held) || take(&held, BEGIN + 1));
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status == 0);
    CHECK(!take(&next, BEGIN + 2));
    give(&held);
    CHECK(take(&next, BEGIN + 3));
    give(&next);
}

static void a_program_that_closes_our_descriptor_keeps_what_it_opens_there(void) {
    struct turn held = {0}, next = {0};
    take(&held, BEGIN);
    int number = held.fd;
    close(number);
    CHECK(dup2(STDERR_FILENO, number) == number);
    CHECK(take(&next, BEGIN + 1), "the lock went with the descriptor");
    turn_use(&held, BEGIN);
    CHECK(turn_is_over(&held, 0, BEGIN + TURN_NS));
    give(&held);
    CHECK(fcntl(number, F_GETFD) >= 0, "it is the program's now");
    close(number);
    give(&next);
}

static void without_a_gate_nobody_waits(void) {
    struct turn turn = {0};
    CHECK(turn_take(&turn, "/nonexistent/gate", BEGIN) && !turn_is_held(&turn));
    CHECK(turn_take(&turn, "/nonexistent/gate", BEGIN + 1));
    turn_forget(&turn);
}

int main(void) {
    int fd = mkstemp(gate);
    CHECK(fd >= 0 && fchmod(fd, 0444) == 0);
    who_has_waited_longest_is_next();
    a_turn_is_over_some_time_after_its_first_launch_if_another_one_waits();
    who_waits_no_more_is_in_nobodys_way();
    who_goes_ahead_has_its_place_again_when_it_comes_back_soon();
    a_turn_that_is_kept_is_not_waited_for_until_it_was_had();
    a_turn_is_kept_for_a_launch_that_is_on_its_way();
    who_comes_late_gives_no_other_turn_and_no_place();
    work_meets_others_from_the_end_of_its_turn_on();
    a_killed_process_leaves_its_turn_to_the_next();
    a_child_of_a_fork_takes_nothing_from_its_parent();
    a_program_that_closes_our_descriptor_keeps_what_it_opens_there();
    without_a_gate_nobody_waits();
    unlink(gate);
    return checked();
}
