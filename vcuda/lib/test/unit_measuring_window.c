/* When launches are measured by themselves: each check prints a line if it fails; the program's answer is how many did.
 */

#include "cuda/cost.h"
#include "cuda/measuring_window.h"
#include "cuda/span_plan.h"
#include "check.h"

#define US UINT64_C(1000)
#define MS (1000 * US)
#define LOOK (150 * US) /* between two looks of the thread that settles */
#define SECONDS (20 * 1000 * MS)

enum { MEASURING_US = 2 };

/* A program that launches each `pace` for `SECONDS`; returns the thousandths of its time that it spent on measuring. */
static double part_spent(struct measuring_window *window, uint64_t pace, bool unsure, unsigned *opened) {
    uint64_t spent = 0, launched = 0;
    bool was_open = true;
    for (uint64_t now = MS; now < SECONDS; now += LOOK) {
        window->unsure |= unsure;
        measuring_window_turn(window, now);
        bool open = measuring_window_is_open(window);
        *opened += open && !was_open;
        was_open = open;
        for (; launched < now / pace; launched++)
            if (open) {
                measuring_window_spent(window, MEASURING_US * US);
                spent += MEASURING_US * US;
            }
    }
    return (double)spent * 1000 / (double)SECONDS;
}

static void measuring_takes_its_part_of_a_threads_time(void) {
    for (int unsure = 0; unsure < 2; unsure++)
        for (uint64_t pace = 4 * US; pace < 100 * US; pace *= 2) {
            struct measuring_window window = {0};
            unsigned opened = 0;
            double part = part_spent(&window, pace, unsure, &opened),
                   most = unsure ? MEASURING_UNSURE_PERMILLE : MEASURING_SURE_PERMILLE;
            CHECK(part < 1.1 * most && part > 0.7 * most, "each %d us: %.1f of %.0f", (int)(pace / US), part, most);
            CHECK(opened > 20, "%u windows", opened);
        }
}

/* A program that uses the card for `percent` of the time, held back by its limit if `held`. Returns the thousandths of
 * its card time that it spent on measuring. */
static double part_of_work_spent(unsigned percent, bool held) {
    struct measuring_window window = {0};
    uint64_t spent = 0, worked = 0, launched = 0, pace = 40 * US * 100 / percent;
    for (uint64_t now = MS; now < SECONDS; now += LOOK) {
        window.unsure = true;
        window.held = held;
        window.worked_ns += LOOK * percent / 100;
        worked += LOOK * percent / 100;
        measuring_window_turn(&window, now);
        for (; launched < now / pace; launched++)
            if (measuring_window_is_open(&window)) {
                measuring_window_spent(&window, MEASURING_US * US);
                spent += MEASURING_US * US;
            }
    }
    return (double)spent * 1000 / (double)worked;
}

static void measuring_takes_its_part_of_the_share_of_a_program_that_is_held_back(void) {
    for (unsigned percent = 5; percent <= 40; percent *= 2) {
        double part = part_of_work_spent(percent, true), free = part_of_work_spent(percent, false);
        CHECK(part > 0.6 * MEASURING_HELD_PERMILLE && part < 1.2 * MEASURING_HELD_PERMILLE, "%u %%: %.1f", percent,
              part);
        CHECK(free > 0.6 * MEASURING_HELD_PERMILLE, "%u %%: %.1f", percent, free);
    }
}

static void a_program_that_launches_seldom_is_always_measured(void) {
    struct measuring_window window = {0};
    unsigned opened = 0;
    double part = part_spent(&window, 2000 * US, false, &opened);
    CHECK(part > 0.99 && part < 1.01 && opened == 0, "%.2f, %u windows", part, opened);
}

/* The thread that settles has no processor for a while: the launching threads close the window. */
static void a_window_closes_by_itself_once_it_has_cost_enough(void) {
    struct measuring_window window = {0};
    uint64_t spent = 0, now = MS;
    measuring_window_turn(&window, now);
    for (int round = 0; round < 200; round++, now += 50 * MS) {
        for (uint64_t at = 0; at < 50 * MS; at += 6 * US)
            if (measuring_window_is_open(&window)) {
                measuring_window_spent(&window, MEASURING_US * US);
                spent += MEASURING_US * US;
            }
        measuring_window_turn(&window, now);
    }
    CHECK(spent < 1.1 * MEASURING_SURE_PERMILLE * (double)(now / 1000), "%.1f thousandths",
          (double)spent * 1000 / (double)now);
}

static void nobody_can_foretell_a_window(void) {
    struct measuring_window one = {0}, other = {.seed = 77};
    uint64_t pauses[2] = {0};
    unsigned same = 0, all = 0;
    for (uint64_t now = MS; now < SECONDS; now += LOOK) {
        struct measuring_window *windows[2] = {&one, &other};
        for (int i = 0; i < 2; i++) {
            measuring_window_turn(windows[i], now);
            if (measuring_window_is_open(windows[i]))
                measuring_window_spent(windows[i], 60 * US);
            else
                pauses[i]++;
        }
        all += !measuring_window_is_open(&one);
        same += !measuring_window_is_open(&one) && measuring_window_is_open(&other);
    }
    CHECK(all > 1000 && same > 10 && pauses[0] != pauses[1], "%u of %u", same, all);
}

static void what_begins_a_window_may_run_beside_work_that_is_not_measured(void) {
    struct measuring_window window = {0};
    CHECK(!measuring_window_is_early(&window, 5 * MS)); /* the first one has nothing before it */
    unsigned opened = 0;
    uint64_t now = MS;
    for (; !opened && now < SECONDS; now += LOOK) {
        bool was_open = measuring_window_is_open(&window);
        measuring_window_turn(&window, now);
        if (measuring_window_is_open(&window))
            measuring_window_spent(&window, 100 * US);
        opened = !was_open && measuring_window_is_open(&window);
    }
    CHECK(measuring_window_is_early(&window, now) && !measuring_window_is_early(&window, now + WINDOW_EARLY_NS));
}

static void long_work_and_new_work_is_measured_always_and_work_that_varies_by_itself(void) {
    struct cost *cost = cost_find(cost_key(&failures, 1));
    CHECK(span_plan_is_alone(cost, false)); /* never seen */
    for (int i = 0; i < 100; i++)
        cost_measured(cost, 30 * US, 30 * US);
    CHECK(!span_plan_is_alone(cost, false) && span_plan_is_alone(cost, true) && !cost_is_unsure(cost));
    CHECK(!span_plan_varies(cost));
    for (int i = 0; i < 100; i++)
        cost_measured(cost, i % 4 ? 10 * US : 90 * US, 30 * US);
    CHECK(!span_plan_is_alone(cost, false) && span_plan_varies(cost) && cost_is_unsure(cost));
    CHECK(span_plan_may_be_beside(cost, false, false) && span_plan_may_be_beside(cost, true, true));
    CHECK(!span_plan_may_be_beside(cost, true, false));
    for (int i = 0; i < 1000; i++)
        cost_measured(cost, SPAN_PLAN_LONG_NS + US, SPAN_PLAN_LONG_NS + US);
    CHECK(span_plan_is_alone(cost, false) && !cost_is_unsure(cost) && !span_plan_may_be_beside(cost, false, false));
}

/* One in ten is a hundred times as long: the mean is what a launch costs on average. */
static void a_mean_is_not_moved_by_where_its_tail_lies(void) {
    struct cost *cost = cost_find(cost_key(&failures, 1 << 20));
    double sum = 0;
    unsigned dice = 7;
    for (int i = 0; i < 100000; i++) {
        dice = dice * 1664525 + 1013904223;
        sum += (double)cost_charge_ns(cost);
        uint64_t ns = (dice >> 16) % 10 ? 10 * US : 1000 * US;
        cost_measured(cost, ns, ns);
    }
    CHECK(sum / 100000 > 107 * US && sum / 100000 < 111 * US, "%.0f", sum / 100000);
}

int main(void) {
    measuring_takes_its_part_of_a_threads_time();
    measuring_takes_its_part_of_the_share_of_a_program_that_is_held_back();
    a_program_that_launches_seldom_is_always_measured();
    a_window_closes_by_itself_once_it_has_cost_enough();
    nobody_can_foretell_a_window();
    what_begins_a_window_may_run_beside_work_that_is_not_measured();
    long_work_and_new_work_is_measured_always_and_work_that_varies_by_itself();
    a_mean_is_not_moved_by_where_its_tail_lies();
    return checked();
}
