/* Whose turn is it on the card? Time slicing between processes, brought up to the present on demand. */
#include "card.h"

enum { DUE_STEPS = 2048 };

static void add(struct bucket *buckets, int64_t epoch, int64_t busy_ns) {
    struct bucket *bucket = &buckets[epoch % CARD_BUCKETS];
    if (bucket->epoch != epoch) {
        bucket->epoch = epoch;
        bucket->busy_ns = 0;
    }
    bucket->busy_ns += busy_ns;
}

/* Utilisation of card and process: the served time, cut at the borders of sampling periods. */
static void account(struct card *card, struct slot *slot, int64_t from, int64_t to) {
    card->busy_ns += to - from;
    while (from < to) {
        int64_t epoch = from / BUCKET_NS;
        int64_t end = (epoch + 1) * BUCKET_NS < to ? (epoch + 1) * BUCKET_NS : to;
        add(card->bucket, epoch, end - from);
        add(slot->bucket, epoch, end - from);
        from = end;
    }
}

/* Room for another stretch: neighbours of the older half become one. Old times get coarser, none is lost: an event
 * that was looked at keeps its own. */
static void fold(struct slot *slot) {
    uint32_t half = CARD_STRETCHES / 2, kept = 0;
    for (uint32_t at = 0; at < half; at += 2) {
        slot->stretch[kept] = slot->stretch[at];
        slot->stretch[kept].p1 = slot->stretch[at + 1].p1;
        slot->stretch[kept++].w1 = slot->stretch[at + 1].w1;
    }
    for (uint32_t at = half; at < slot->stretches; at++)
        slot->stretch[kept++] = slot->stretch[at];
    slot->stretches = kept;
}

static void serve(struct card *card, struct slot *slot, int64_t from, int64_t length) {
    account(card, slot, from, from + length);
    struct stretch *last = slot->stretches ? &slot->stretch[slot->stretches - 1] : NULL;
    if (last && last->w1 == from && last->p1 == slot->served) {
        last->w1 += length;
        last->p1 += length;
    } else {
        if (slot->stretches == CARD_STRETCHES)
            fold(slot);
        slot->stretch[slot->stretches++] = (struct stretch){slot->served, slot->served + length, from, from + length};
    }
    slot->served += length;
}

/* The next slot with work, from the one after `turn` round to `turn` itself; CARD_SLOTS: none has any. */
static uint32_t next_turn(const struct card *card) {
    for (uint32_t step = 1; step <= card->highest; step++) {
        uint32_t index = (card->turn + step) % card->highest;
        if (card->slot[index].live && card->slot[index].asked > card->slot[index].served)
            return index;
    }
    return CARD_SLOTS;
}

/* How many processes wait with work, this and others. */
static int working(const struct card *card) {
    int count = 0;
    for (uint32_t index = 0; index < card->highest; index++)
        count += card->slot[index].live && card->slot[index].asked > card->slot[index].served;
    return count;
}

void card_note_end(struct hold *hold, int64_t p) {
    struct slot *slot = &hold->card->slot[hold->mine];
    if (!config_read()->whole_kernels)
        return;
    if (slot->last_end - slot->first_end == CARD_ENDS) /* more than any queue holds: some become one */
        slot->last_end--;
    slot->end[slot->last_end++ % CARD_ENDS] = p;
}

/* How long a turn that begins now is. */
static int64_t turn_of(struct slot *slot) {
    if (!config_read()->whole_kernels)
        return slot->quantum_ns;
    while (slot->first_end != slot->last_end && slot->end[slot->first_end % CARD_ENDS] <= slot->served)
        slot->first_end++;
    return slot->first_end != slot->last_end ? slot->end[slot->first_end % CARD_ENDS] - slot->served
                                             : slot->asked - slot->served;
}

void card_advance(struct hold *hold, int64_t now) {
    struct card *card = hold->card;
    bool whole = config_read()->whole_kernels;
    while (card->clock < now) {
        struct slot *slot = &card->slot[card->turn];
        bool wants = slot->live && slot->asked > slot->served;
        if (!wants || card->quantum_left <= 0) {
            uint32_t next = next_turn(card);
            if (next == CARD_SLOTS)
                break;
            /* Work queued by the dead goes with them. */
            if (next != card->turn && card_owner(hold, next) < 0) {
                card->slot[next].asked = card->slot[next].served;
                card_reap(hold);
                continue;
            }
            if (next != card->turn)
                card->clock += config_read()->switch_ns;
            card->turn = next;
            card->quantum_left = turn_of(&card->slot[next]);
            continue;
        }
        int64_t length = slot->asked - slot->served;
        if (length > now - card->clock)
            length = now - card->clock;
        if (length > card->quantum_left && (whole || working(card) > 1))
            length = card->quantum_left;
        serve(card, slot, card->clock, length);
        card->clock += length;
        card->quantum_left -= length;
    }
    card->clock = card->clock < now ? now : card->clock;
}

/* When the kernel that runs is over, or this process's own work is: an end that is not too late. */
static int64_t due_by_kernels(const struct card *card, uint32_t mine, int64_t need, int others, int64_t now) {
    int64_t left = card->quantum_left > 1000 ? card->quantum_left : 1000;
    if (others == 0 || (card->turn == mine && need < left))
        return now + need;
    return now + left;
}

/* Plays the rotation forward on the backlogs as they are now; after DUE_STEPS turns the answer is "not before". */
int64_t card_due(const struct hold *hold, int64_t p, int64_t now) {
    const struct card *card = hold->card;
    int64_t backlog[CARD_SLOTS], due = now, left = card->quantum_left;
    int64_t need = p - card->slot[hold->mine].served;
    uint32_t mine = (uint32_t)hold->mine, turn = card->turn;
    int others = 0;
    for (uint32_t index = 0; index < card->highest; index++) {
        const struct slot *slot = &card->slot[index];
        backlog[index] = slot->live && slot->asked > slot->served ? slot->asked - slot->served : 0;
        others += index != mine && backlog[index] > 0;
    }
    if (config_read()->whole_kernels)
        return need > 0 ? due_by_kernels(card, mine, need, others, now) : now;
    if (turn >= card->highest)
        turn = left = 0;
    for (int step = 0; step < DUE_STEPS && need > 0; step++) {
        if (others == 0)
            return due + need;
        int64_t most = turn == mine ? need : backlog[turn];
        int64_t length = most < left ? most : left > 0 ? left : 0;
        due += length;
        backlog[turn] -= length;
        if (turn == mine)
            need -= length;
        else if (length > 0 && backlog[turn] == 0)
            others--;
        do
            turn = (turn + 1) % card->highest;
        while (backlog[turn] == 0 && turn != mine);
        left = card->slot[turn].quantum_ns;
    }
    return due;
}

int64_t card_wall(const struct hold *hold, int64_t p) {
    const struct slot *slot = &hold->card->slot[hold->mine];
    uint32_t low = 0, high = slot->stretches;
    while (low < high) { /* the first stretch that reaches p */
        uint32_t middle = (low + high) / 2;
        if (slot->stretch[middle].p1 < p)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == slot->stretches)
        return slot->stretches ? slot->stretch[low - 1].w1 : 0;
    const struct stretch *at = &slot->stretch[low];
    if (p <= at->p0)
        return at->w0;
    double part = (double)(p - at->p0) / (double)(at->p1 - at->p0);
    return at->w0 + (int64_t)(part * (double)(at->w1 - at->w0));
}

int card_busy_permille(const struct bucket *buckets, int64_t epoch) {
    const struct bucket *bucket = &buckets[epoch % CARD_BUCKETS];
    return bucket->epoch == epoch ? (int)(bucket->busy_ns * 1000 / BUCKET_NS) : 0;
}
