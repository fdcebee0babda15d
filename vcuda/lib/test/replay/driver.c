/* Events over the modelled card, and the host's clock. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define NO_EVENT UINT32_MAX

struct host_settings host_defaults(void) {
    return (struct host_settings){
        /* Measured on a host with an H100 and driver 580 (tests/data/cards). */
        .launch_ns = 3600,
        .reach_percent = 50, /* fits three hosts; a fourth one's launches were on the card earlier */
        .load_ns = 500000,
        .record_ns = 1000,
        .host_function_ns = 4500,
        .query_ns = 300,
        .sync_wake_ns = 5000,
        /* Measured on Linux without real-time priority: the shortest nanosleep takes 67 us, so a sleep ends about 60 us
         * late (timer slack 50 us, and the switch). */
        .wake_late_ns = 60000,
    };
}

void driver_begin(struct modelled_driver *driver, struct card_settings card, struct host_settings host) {
    memset(driver, 0, sizeof *driver);
    card_begin(&driver->card, card);
    driver->host = host;
    driver->first_free = NO_EVENT;
}

void driver_end(struct modelled_driver *driver) {
    card_end(&driver->card);
    free(driver->events);
    driver->events = NULL;
}

static void spend(struct modelled_driver *driver, uint64_t nanoseconds) {
    if (!driver->in_helper)
        driver->now += nanoseconds;
}

/* A limiter that uses an event or a stream which it does not have is wrong in a way that no figure would show. */
static struct event *event_of(struct modelled_driver *driver, uint32_t event) {
    if (event >= driver->event_count || !driver->events[event].alive)
        abort();
    return &driver->events[event];
}

static void check_stream(uint32_t stream) {
    if (stream >= CARD_STREAMS)
        abort();
}

uint64_t driver_now(const struct modelled_driver *driver) {
    return driver->now;
}

uint32_t driver_event_create(struct modelled_driver *driver) {
    uint32_t event = driver->first_free;
    if (event != NO_EVENT) {
        driver->first_free = driver->events[event].next_free;
    } else {
        if (driver->event_count == driver->event_room) {
            driver->event_room = driver->event_room ? 2 * driver->event_room : 64;
            driver->events = realloc(driver->events, driver->event_room * sizeof *driver->events);
            if (!driver->events)
                abort();
        }
        event = driver->event_count++;
    }
    driver->events[event] = (struct event){.alive = true};
    return event;
}

void driver_event_destroy(struct modelled_driver *driver, uint32_t event) {
    struct event *of = event_of(driver, event);
    of->alive = false;
    of->next_free = driver->first_free;
    driver->first_free = event;
}

void driver_event_record(struct modelled_driver *driver, uint32_t event, uint32_t stream) {
    check_stream(stream);
    struct event *of = event_of(driver, event);
    of->recorded = true;
    spend(driver, driver->host.record_ns);
    of->done_at = card_submit_event(&driver->card, stream, driver->now);
}

uint64_t driver_host_function(struct modelled_driver *driver, uint32_t stream) {
    check_stream(stream);
    spend(driver, driver->host.host_function_ns);
    /* The thread makes its next three calls at once: a record, a launch and a record, as long as they always take. */
    uint64_t ready = driver->now + 2 * driver->host.record_ns +
                     driver->host.launch_ns * (100 + driver->host.launch_varies_percent) / 100;
    return card_submit_host_function(&driver->card, stream, driver->now, ready);
}

bool driver_event_query(struct modelled_driver *driver, uint32_t event) {
    const struct event *of = event_of(driver, event);
    bool done = !of->recorded || of->done_at <= driver->now;
    spend(driver, driver->host.query_ns);
    return done;
}

bool driver_event_elapsed(struct modelled_driver *driver, uint32_t start, uint32_t end, float *milliseconds) {
    const struct event *from = event_of(driver, start), *to = event_of(driver, end);
    bool known = from->recorded && to->recorded && from->done_at <= driver->now && to->done_at <= driver->now;
    if (known) {
        int64_t nanoseconds =
            (int64_t)(card_stamp(&driver->card, to->done_at) - card_stamp(&driver->card, from->done_at));
        *milliseconds = (float)((double)nanoseconds / 1e6);
    }
    spend(driver, driver->host.query_ns);
    return known;
}

bool driver_stream_query(struct modelled_driver *driver, uint32_t stream) {
    check_stream(stream);
    bool idle = driver->card.stream[stream].idle_at <= driver->now;
    spend(driver, driver->host.query_ns);
    return idle;
}

void driver_wake_helper(struct modelled_driver *driver, uint64_t at) {
    if (at < driver->helper_at)
        driver->helper_at = at;
}
