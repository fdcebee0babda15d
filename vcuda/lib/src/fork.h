/* Runs cleanup functions in the child of a fork. */
#ifndef VCUDA_FORK_H
#define VCUDA_FORK_H

/* Call `forget` in every child of a fork from now on. Registering a function again has no effect; any thread may
 * register. The first registration installs the library's only atfork handler. */
void fork_forgets(void (*forget)(void));

#endif
