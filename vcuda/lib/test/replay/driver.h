/* The driver between program, limiter and card: events, and what its calls cost the host. */
#ifndef VCUDA_REPLAY_DRIVER_H
#define VCUDA_REPLAY_DRIVER_H

#include "card.h"
#include "limiter_under_test.h"

struct host_settings {
    uint64_t launch_ns;             /* a launch in the launching thread ... */
    uint64_t launch_varies_percent; /* ... to both sides, ... */
    uint64_t reach_percent;         /* ... of which so much passes until it is on the card */
    uint64_t load_ns;               /* of a function's first launch: its code is loaded */
    uint64_t record_ns;             /* cuEventRecord there: by its end it is on the card */
    uint64_t host_function_ns;      /* cuLaunchHostFunc there */
    uint64_t query_ns;              /* cuEventQuery, cuStreamQuery, cuEventElapsedTime there */
    uint64_t sync_wake_ns;          /* from the end of the work to the return of a synchronise */
    uint64_t wake_late_ns;          /* how late a sleeping thread wakes */
};

struct event {
    uint64_t done_at;
    bool alive, recorded;
    uint32_t next_free; /* of an event that is not alive */
};

struct modelled_driver {
    struct card card;
    struct host_settings host;
    uint64_t now;
    bool in_helper; /* the caller is the helper: its calls cost the program nothing */
    uint64_t helper_at;
    struct event *events;
    uint32_t event_count, event_room, first_free;
};

struct host_settings host_defaults(void);
void driver_begin(struct modelled_driver *driver, struct card_settings card, struct host_settings host);
void driver_end(struct modelled_driver *driver);

#endif
