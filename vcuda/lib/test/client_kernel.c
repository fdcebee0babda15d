/* A kernel of a given length, as every client launches it. */
#include "client.h"

/*
 * As much work as takes `us` microseconds: rounds that wait for one another, `per_ms` of them a millisecond. The work
 * is counted, not the time: nobody promises that the SM's clock stands still while other processes have the card. How
 * many cycles it took goes to `out`. The stand-in reads the first parameter and nothing else.
 */
#define STEP "  mad.lo.u32 %r3, %r3, %r3, %r4;\n"
#define STEPS STEP STEP STEP STEP STEP STEP STEP STEP
static const char ptx[] =
    ".version 6.3\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u32 us, .param .u32 per_ms, .param .u64 out)\n{\n"
    "  .reg .pred %p<2>;\n  .reg .b32 %r<6>;\n  .reg .b64 %rd<5>;\n"
    "  ld.param.u32 %r1, [us];\n  ld.param.u32 %r2, [per_ms];\n  ld.param.u64 %rd4, [out];\n"
    "  mul.wide.u32 %rd1, %r1, %r2;\n  div.u64 %rd1, %rd1, 1000;\n"
    "  mov.u32 %r3, %tid.x;\n  or.b32 %r4, %r3, 1;\n  mov.u64 %rd2, %clock64;\n"
    "again:\n" STEPS STEPS "  sub.s64 %rd1, %rd1, 1;\n  setp.gt.s64 %p1, %rd1, 0;\n  @%p1 bra again;\n"
    "  mov.u64 %rd3, %clock64;\n  sub.u64 %rd3, %rd3, %rd2;\n"
    "  mov.u32 %r5, %ctaid.x;\n  mov.u32 %r1, %tid.x;\n  or.b32 %r5, %r5, %r1;\n"
    "  setp.ne.u32 %p1, %r5, 0;\n  @%p1 bra done;\n"
    "  st.global.u64 [%rd4], %rd3;\n  st.global.u32 [%rd4+8], %r3;\ndone:\n  ret;\n}\n";

enum { ATTRIBUTE_CLOCK_KHZ = 13, ATTRIBUTE_SMS = 16, ATTRIBUTE_SHARED_OF_BLOCK = 97, FUNCTION_SHARED = 8 };
enum { TRIES = 5, TRY_US = 50, CYCLES_A_ROUND = 80 };

void kernel_launch(struct kernel *kernel, void *stream) {
    void *params[] = {&kernel->us, &kernel->per_ms, &kernel->out};
    must(driver.cuLaunchKernel(kernel->function, kernel->grid, 1, 1, 32, 1, 1, kernel->shared, stream, params, NULL),
         "cuLaunchKernel");
}

/* How many rounds are a millisecond at the clock that the driver names. The shortest of a few: in the others somebody
 * else may have had the card. */
static void calibrate(struct kernel *kernel, uint64_t khz, void *stream) {
    struct kernel one = *kernel;
    uint64_t least = 0;
    one.us = TRY_US;
    one.grid = 1;
    one.per_ms = kernel->per_ms = (uint32_t)(khz / CYCLES_A_ROUND);
    for (int at = 0; at < TRIES; at++) {
        *kernel->out = 0;
        kernel_launch(&one, stream);
        must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
        least = !least || *kernel->out < least ? *kernel->out : least;
    }
    if (least)
        kernel->per_ms = (uint32_t)(khz * ((uint64_t)one.us * one.per_ms / 1000) / least);
}

void kernel_load(struct kernel *kernel, int argc, char **argv, long us) {
    int card = (int)option_number(argc, argv, "--card", 0), khz, sms, shared;
    void *module, *stream;
    use_card(card);
    kernel->us = (uint32_t)option_number(argc, argv, "--us", us);
    must(driver.cuDeviceGetAttribute(&khz, ATTRIBUTE_CLOCK_KHZ, card), "cuDeviceGetAttribute");
    must(driver.cuDeviceGetAttribute(&sms, ATTRIBUTE_SMS, card), "cuDeviceGetAttribute");
    kernel->grid = (unsigned int)option_number(argc, argv, "--grid", sms);
    must(driver.cuMemHostAlloc((void **)&kernel->out, 64, 0), "cuMemHostAlloc");
    must(driver.cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    must(driver.cuModuleGetFunction(&kernel->function, module, "spin"), "cuModuleGetFunction");
    /* A block takes all that an SM shares, and there is a block for each SM: no two kernels ever run at once. */
    must(driver.cuDeviceGetAttribute(&shared, ATTRIBUTE_SHARED_OF_BLOCK, card), "cuDeviceGetAttribute");
    must(driver.cuFuncSetAttribute(kernel->function, FUNCTION_SHARED, shared), "cuFuncSetAttribute");
    kernel->shared = (unsigned int)shared;
    must(driver.cuStreamCreate(&stream, NON_BLOCKING), "cuStreamCreate");
    calibrate(kernel, (uint64_t)khz, stream);
}
