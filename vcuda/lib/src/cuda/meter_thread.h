/* The helper thread of a process: settles work while any is in flight, and sleeps otherwise. */
#ifndef VCUDA_METER_THREAD_H
#define VCUDA_METER_THREAD_H

/* Start or wake the helper thread: there is work to settle from now on. */
void meter_thread_wake(void);

#endif
