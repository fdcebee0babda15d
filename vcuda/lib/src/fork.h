/* What the library forgets in the child of a fork. */
#ifndef VCUDA_FORK_H
#define VCUDA_FORK_H

/* Call `forget` in every child of a fork from now on. Registering a function again changes nothing; any thread may.
 * The first registration installs the one handler that the library has. */
void fork_forgets(void (*forget)(void));

#endif
