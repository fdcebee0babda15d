#define _GNU_SOURCE
#include "cuda/turn.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "lock.h"

#define AHEAD_AT (UINT64_C(1) << 62) /* behind any time: the byte of those who went ahead without the turn */

static bool place(const struct turn *turn, short type, uint64_t at) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)at, .l_len = 1};
    return fcntl(turn->fd, F_OFD_SETLK, &range) == 0;
}

static bool others_hold(const struct turn *turn, uint64_t from, uint64_t length) {
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)from, .l_len = (off_t)length};
    return fcntl(turn->fd, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

/* Does another process wait, since before `until`? */
static bool others_wait(const struct turn *turn, uint64_t until) {
    return others_hold(turn, 0, until);
}

static void wait_from(struct turn *turn, uint64_t since) {
    __atomic_store_n(&turn->stood_ns, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&turn->since, since, __ATOMIC_RELAXED);
}

static void close_own(struct turn *turn) {
    if (turn->is_open)
        descriptor_close(turn->fd, &turn->file);
    turn->is_open = false;
    wait_from(turn, 0);
    __atomic_store_n(&turn->ahead_at, 0, __ATOMIC_RELAXED);
}

/* The program may have closed our descriptor: the lock went with it. */
static bool open_own(struct turn *turn, const char *path) {
    if (turn->is_open && descriptor_is(turn->fd, &turn->file))
        return true;
    wait_from(turn, 0);
    turn->fd = descriptor_open(path, O_RDONLY);
    turn->is_open = turn->fd >= 0 && descriptor_file(turn->fd, "", &turn->file);
    if (turn->fd >= 0 && !turn->is_open)
        close(turn->fd);
    return turn->is_open;
}

static bool take(struct turn *turn, const char *path, uint64_t now) {
    uint64_t since = turn->left_since && now < turn->left_at + TURN_AHEAD_NS ? turn->left_since : now;
    if (!open_own(turn, path) || (!turn->since && !place(turn, F_RDLCK, since))) {
        turn->is_none = true;
        close_own(turn);
        return true;
    }
    if (!turn->since)
        wait_from(turn, since);
    turn->left_since = 0;
    if (others_wait(turn, turn->since) || flock(turn->fd, LOCK_EX | LOCK_NB) != 0)
        return false;
    place(turn, F_UNLCK, turn->since);
    wait_from(turn, 0);
    __atomic_store_n(&turn->is_kept, false, __ATOMIC_RELAXED);
    __atomic_store_n(&turn->taken_at, now, __ATOMIC_RELAXED);
    __atomic_store_n(&turn->from, 0, __ATOMIC_RELAXED);
    turn->kept_since = 0;
    __atomic_store_n(&turn->is_held, true, __ATOMIC_SEQ_CST);
    return true;
}

bool turn_take(struct turn *turn, const char *path, uint64_t now) {
    if (turn_hold(turn))
        return true;
    bool is_none = __atomic_load_n(&turn->is_none, __ATOMIC_RELAXED);
    if (!is_none && !spin_try(&turn->busy))
        return false;
    bool has = is_none || turn_is_held(turn) || take(turn, path, now);
    if (has)
        __atomic_fetch_add(&turn->launching, 1, __ATOMIC_RELAXED); /* whoever gives it has the lock */
    if (!is_none)
        spin_unlock(&turn->busy);
    return has;
}

bool turn_is_over(struct turn *turn, uint64_t next_ns, uint64_t now) {
    uint64_t from = __atomic_load_n(&turn->from, __ATOMIC_RELAXED);
    if (!from || now + next_ns / 2 < from + TURN_NS || !spin_try(&turn->busy))
        return false;
    bool over = turn_is_held(turn) && (!descriptor_is(turn->fd, &turn->file) || others_wait(turn, AHEAD_AT));
    if (!over) {
        __atomic_store_n(&turn->from, now, __ATOMIC_RELAXED);
        turn->kept_since = 0;
    }
    spin_unlock(&turn->busy);
    return over;
}

void turn_extend(struct turn *turn, uint64_t since, uint64_t until) {
    uint64_t stood = __atomic_load_n(&turn->stood_until, __ATOMIC_RELAXED), begin;
    do {
        begin = stood > since ? stood : since;
        if (begin >= until)
            return;
    } while (
        !__atomic_compare_exchange_n(&turn->stood_until, &stood, until, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (!turn_is_held(turn))
        __atomic_fetch_add(&turn->stood_ns, until - begin, __ATOMIC_RELAXED);
    else if (__atomic_load_n(&turn->from, __ATOMIC_RELAXED))
        __atomic_fetch_add(&turn->from, until - begin, __ATOMIC_RELAXED);
}

bool turn_waits_in_vain(const struct turn *turn, uint64_t now) {
    uint64_t since = __atomic_load_n(&turn->since, __ATOMIC_RELAXED);
    uint64_t from = since + __atomic_load_n(&turn->stood_ns, __ATOMIC_RELAXED);
    return __atomic_load_n(&turn->is_kept, __ATOMIC_RELAXED) || (since && now >= from + TURN_PATIENCE_NS);
}

/* Is a launch on its way, and has not been for long? */
static bool is_kept_for_launch(struct turn *turn, uint64_t now) {
    if (!__atomic_load_n(&turn->launching, __ATOMIC_SEQ_CST))
        return false;
    if (!turn->kept_since)
        turn->kept_since = now;
    return now < turn->kept_since + TURN_LAUNCH_NS;
}

bool turn_give(struct turn *turn, uint64_t taken_at, uint64_t now) {
    if (!spin_try(&turn->busy))
        return false;
    __atomic_store_n(&turn->is_given, true, __ATOMIC_SEQ_CST);
    bool gives = turn_is_held(turn) && turn->taken_at == taken_at && !is_kept_for_launch(turn, now);
    if (gives) {
        __atomic_store_n(&turn->is_held, false, __ATOMIC_SEQ_CST);
        close_own(turn);
    }
    __atomic_store_n(&turn->is_given, false, __ATOMIC_SEQ_CST);
    spin_unlock(&turn->busy);
    return gives;
}

void turn_went_ahead(struct turn *turn, bool waits_on, uint64_t now) {
    if (!spin_try(&turn->busy))
        return;
    if (turn_waits_in_vain(turn, now))
        __atomic_store_n(&turn->is_kept, true, __ATOMIC_RELAXED);
    if (turn->is_open && !turn_is_held(turn) && descriptor_is(turn->fd, &turn->file)) {
        if (!waits_on && turn->since) {
            place(turn, F_UNLCK, turn->since);
            turn->left_since = turn->since;
            turn->left_at = now;
            wait_from(turn, 0);
        }
        if (turn->ahead_at || place(turn, F_RDLCK, AHEAD_AT))
            __atomic_store_n(&turn->ahead_at, now, __ATOMIC_RELAXED);
    }
    spin_unlock(&turn->busy);
}

bool turn_tend(struct turn *turn, uint64_t now) {
    uint64_t ahead = __atomic_load_n(&turn->ahead_at, __ATOMIC_RELAXED);
    if (!ahead || now < ahead + TURN_AHEAD_NS || !spin_try(&turn->busy))
        return ahead != 0;
    if (turn->is_open && descriptor_is(turn->fd, &turn->file))
        place(turn, F_UNLCK, AHEAD_AT);
    __atomic_store_n(&turn->ahead_at, 0, __ATOMIC_RELAXED);
    if (!turn_is_held(turn) && !turn->since)
        close_own(turn);
    spin_unlock(&turn->busy);
    return false;
}

bool turn_others_ran(struct turn *turn, uint64_t since) {
    uint64_t ahead = __atomic_load_n(&turn->ahead_at, __ATOMIC_RELAXED);
    uint64_t taken = __atomic_load_n(&turn->taken_at, __ATOMIC_RELAXED);
    if (ahead >= since || taken + TURN_LEFT_NS > since || (taken && !turn_is_held(turn)))
        return true; /* also what was in flight when the turn was given meets the next one's */
    if (!spin_try(&turn->busy))
        return true;
    bool ran = turn->is_open && descriptor_is(turn->fd, &turn->file) && others_hold(turn, AHEAD_AT, 1);
    spin_unlock(&turn->busy);
    return ran;
}

void turn_forget(struct turn *turn) {
    close_own(turn);
    *turn = (struct turn){0};
}
