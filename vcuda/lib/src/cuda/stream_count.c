/* An item of the table for each context: how many streams it has, plus one, since an item that counts nothing is none.
 */
#include "cuda/stream_count.h"

#include "cuda/allocation_table.h"
#include "cuda/device_map.h"

uint32_t stream_count_up(uint64_t owner) {
    struct allocation item;
    for (int attempt = 0; attempt < 2; attempt++) {
        if (allocation_count(ALLOCATION_STREAMS, owner, 1, &item))
            return item.count - 1;
        item = (struct allocation){
            .key = owner, .owner = owner, .count = 2, .card = CARD_NONE, .kind = ALLOCATION_STREAMS};
        if (allocation_put_new(&item))
            return 1;
    }
    return 0;
}

void stream_count_down(uint64_t owner) {
    struct allocation item;
    allocation_count(ALLOCATION_STREAMS, owner, -1, &item);
}
