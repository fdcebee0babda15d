/* What processes and their contexts take of a card's memory. */
#include "process.h"

int64_t granules(int64_t bytes) {
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

bool device_charge(struct device *device, int64_t bytes) {
    if (bytes == 0)
        return true;
    card_lock(&device->hold);
    bool fits = (device->hold.mine >= 0 || card_join(&device->hold)) && card_charge(&device->hold, bytes);
    card_unlock(&device->hold);
    return fits;
}

bool context_charge(struct device *device, int sign) {
    struct hold *hold = &device->hold;
    int64_t listed = sign * granules(hold->config->context_bytes), unlisted = sign * hold->config->unlisted_bytes;
    card_lock(hold);
    bool fits = (hold->mine >= 0 || card_join(hold)) && card_charge(hold, listed);
    if (fits && !card_charge_unlisted(hold, unlisted)) {
        card_charge(hold, -listed);
        fits = false;
    }
    card_unlock(hold);
    return fits;
}

void device_shares(struct device *device, int64_t bytes) {
    card_lock(&device->hold);
    if (device->hold.mine >= 0)
        device->hold.card->slot[device->hold.mine].shared_bytes += bytes;
    card_unlock(&device->hold);
}

enum { THREADS_OF_A_SM = 2048 };

static int64_t threads_bytes(const struct context *context, int64_t stack, int64_t local) {
    int64_t most = stack > local ? stack : local;
    return granules((most > STACK ? most : STACK) * context->device->hold.config->sms * THREADS_OF_A_SM);
}

bool context_threads(struct context *context, int64_t stack, int64_t local) {
    int64_t now = threads_bytes(context, context->limit[0], context->local_bytes);
    if (!device_charge(context->device, threads_bytes(context, stack, local) - now))
        return false;
    context->limit[0] = stack;
    context->local_bytes = local;
    return true;
}

/* As an H100 with driver 580 was seen to: nothing for the first; 2 MiB for each four of the others, and 48 KiB for each
 * in granules common to all. Which part of the first of these is used before is known to lie between 128 and 463 KiB.
 */
static int64_t streams_bytes(int streams) {
    int more = streams ? streams - 1 : 0;
    return (more + 3) / 4 * GRANULE + (more * 48 + 463) * 1024LL / GRANULE * GRANULE;
}

bool context_stream(struct context *context) {
    if (context->streams_now == context->streams_most) {
        int64_t more = streams_bytes(context->streams_most + 1) - streams_bytes(context->streams_most);
        if (!device_charge(context->device, more))
            return false;
        context->streams_most++;
    }
    context->streams_now++;
    return true;
}

void context_streams_end(struct context *context) {
    device_charge(context->device, -streams_bytes(context->streams_most));
}
