#define _GNU_SOURCE
#include "cuda/thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "interposer.h"

/* Threads belong to another library than libc on older systems; the driver depends on it, so that is where it is. */
static int create(pthread_t *thread, void *(*run)(void *)) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return pthread_create(thread, NULL, run, NULL);
#else
    int (*function)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = (int (*)(
        pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))vcuda_interposer_find("pthread_create");
    return function ? function(thread, NULL, run, NULL) : ENOSYS;
#endif
}

bool thread_start(void *(*run)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before); /* the new thread inherits it; a thread's own mask, on Linux */
    bool started = create(&thread, run) == 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return started;
}
