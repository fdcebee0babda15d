/* What a modelled card served each process, by the card's own clock: a line
 * `<clock ns> <pid>:<served ns> ...` each so many milliseconds, until stdin
 * closes. Being late itself changes nothing: time and service belong together.
 *
 *   core_watch <milliseconds>
 *
 * Built from the stand-in's own sources; uses no card, so it is none of the
 * card's processes.
 */
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#include "card.h"

int main(int argc, char **argv) {
  struct pollfd input = {.fd = 0, .events = POLLIN};
  struct hold hold;
  if (argc < 2 || !card_open(&hold, &config_read()->card[0]))
    return 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  do {
    card_lock(&hold);
    int64_t now = now_ns();
    card_advance(&hold, now);
    printf("%" PRId64, now);
    for (uint32_t index = 0; index < hold.card->highest; index++)
      if (hold.card->slot[index].live)
        printf(" %d:%" PRId64, hold.card->slot[index].pid,
               hold.card->slot[index].served);
    card_unlock(&hold);
    printf("\n");
  } while (poll(&input, 1, atoi(argv[1])) == 0);
  return 0;
}
