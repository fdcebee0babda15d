#include "cuda/pool_choice.h"

#include "cuda/account.h"
#include "cuda/context_registry.h"
#include "cuda/device_map.h"
#include "cuda/stream_meter.h"
#include "interposer.h"
#include "lock.h"

#define REMEMBERED 64

static uint64_t changes;

void pool_choice_changed(void) {
    __atomic_fetch_add(&changes, 1, __ATOMIC_SEQ_CST);
}

/* Of a pool that no call of this process has made: some device's own. */
static int card_of_default(CUmemoryPool pool) {
    int count = 0;
    real.cuDeviceGetCount(&count);
    for (CUdevice device = 0; device < count; device++) {
        CUmemoryPool own = NULL, current = NULL;
        real.cuDeviceGetDefaultMemPool(&own, device);
        real.cuDeviceGetMemPool(&current, device);
        if (pool == own || pool == current)
            return device_map_card(device);
    }
    return CARD_UNKNOWN;
}

/* The only device of the process; false if there are several. */
static bool has_one_device(void) {
    static int count;
    int known = __atomic_load_n(&count, __ATOMIC_RELAXED);
    if (!known && real.cuDeviceGetCount(&known) == CUDA_SUCCESS)
        __atomic_store_n(&count, known, __ATOMIC_RELAXED);
    return known == 1;
}

/* Asks the driver. */
static CUresult ask(CUmemoryPool pool, CUstream stream, struct pool_account **account) {
    struct current_context where;
    if (!context_of_stream(stream, &where))
        return CUDA_SUCCESS; /* and the driver will say why */
    if (!pool && real.cuDeviceGetMemPool(&pool, where.device) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    *account = pool_account_find(pool);
    if (!*account) {
        int card = card_of_default(pool);
        *account = pool_account_of(pool, card == CARD_UNKNOWN ? where.card : card);
    }
    return *account ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* What decides, as long as nothing changes: the pool if one is named, and where the process sees several devices the
 * stream, or for a null stream the context. */
struct question {
    CUmemoryPool pool;
    CUstream stream;
    CUcontext context;
    uint64_t changes;
};

/* The answers; a thread that finds one taken asks the driver. */
static struct {
    bool busy;
    struct question question;
    struct pool_account *account; /* NULL: none */
} remembered[REMEMBERED];

static bool is_same(const struct question *a, const struct question *b) {
    return a->pool == b->pool && a->stream == b->stream && a->context == b->context && a->changes == b->changes;
}

static unsigned place_of(const struct question *question) {
    uint64_t key = (uint64_t)(uintptr_t)question->stream ^ (uint64_t)(uintptr_t)question->context << 1 ^
                   (uint64_t)(uintptr_t)question->pool << 2;
    return (unsigned)(key * UINT64_C(0x9e3779b97f4a7c15) >> 58);
}
_Static_assert(REMEMBERED == 1 << (64 - 58), "the upper six bits are the place");

static struct pool_account *recall(const struct question *question) {
    unsigned at = place_of(question);
    if (!spin_try(&remembered[at].busy))
        return NULL;
    struct pool_account *account = is_same(&remembered[at].question, question) ? remembered[at].account : NULL;
    spin_unlock(&remembered[at].busy);
    return account;
}

static void remember(const struct question *question, struct pool_account *account) {
    unsigned at = place_of(question);
    if (!spin_try(&remembered[at].busy))
        return;
    remembered[at].question = *question;
    remembered[at].account = account;
    spin_unlock(&remembered[at].busy);
}

/* Put as short as it can be; false if the driver has to be asked in any case. */
static bool put(struct question *question, CUmemoryPool pool, CUstream stream) {
    *question =
        (struct question){.pool = pool, .changes = context_changes() + __atomic_load_n(&changes, __ATOMIC_SEQ_CST)};
    if (has_one_device())
        return true;
    question->changes += __atomic_load_n(&streams_ended, __ATOMIC_SEQ_CST);
    if ((uintptr_t)stream > 2)
        question->stream = stream;
    else if (real.cuCtxGetCurrent(&question->context) != CUDA_SUCCESS || !question->context)
        return false;
    return true;
}

CUresult pool_choice(CUmemoryPool pool, CUstream stream, struct pool_account **account) {
    struct question question;
    bool refused;
    *account = NULL;
    if (!account_open(&refused))
        return refused ? CUDA_ERROR_SYSTEM_NOT_READY : CUDA_SUCCESS;
    bool may_know = put(&question, pool, stream);
    if (may_know && (*account = recall(&question)))
        return CUDA_SUCCESS;
    CUresult result = ask(pool, stream, account);
    if (may_know && *account)
        remember(&question, *account);
    return result;
}
