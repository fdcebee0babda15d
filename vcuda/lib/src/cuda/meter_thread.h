/* The helper thread of a process: it settles work while any is in flight, and sleeps otherwise. */
#ifndef VCUDA_METER_THREAD_H
#define VCUDA_METER_THREAD_H

/* Make sure that the thread exists and is awake: there is work to settle from now on. */
void meter_thread_wake(void);

#endif
