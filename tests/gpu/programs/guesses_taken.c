/* What the driver takes of the card in calls that name no size, or not there: see guesses.h. */
#include "guesses.h"

enum { STACK_LIMIT = 0, PRINTF_LIMIT = 1, NAME_BYTES = 64 };

static void synchronise_all(void) {
    FIND(cuCtxSynchronize, 2000, (void));
    must(cuCtxSynchronize(), "cuCtxSynchronize");
}
static void *load(const char *ptx) {
    FIND(cuModuleLoadData, 2000, (void **, const void *));
    void *module;
    must(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    return module;
}
static void *function(void *module, const char *name) {
    FIND(cuModuleGetFunction, 2000, (void **, void *, const char *));
    void *found;
    must(cuModuleGetFunction(&found, module, name), "cuModuleGetFunction");
    return found;
}
static void run(void *kernel, void *on, void **parameters) {
    FIND(cuLaunchKernel, 4000,
         (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **));
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, on, parameters, NULL), "cuLaunchKernel");
}
/* What comes with a context's first launch is nobody's question here. */
static void *begin(void) {
    void *nothing = function(load(nothing_ptx), "nothing");
    run(nothing, stream, NULL);
    synchronise_all();
    begin_free = free_bytes();
    return nothing;
}
static void taken_by(const char *form, long long number) {
    char name[NAME_BYTES];
    snprintf(name, sizeof name, form, number);
    taken(name);
}

static void streams_by_number(void) {
    enum { MOST = 2048 };
    static const int marks[] = {1, 4, 5, 8, 12, 16, 24, 32, 33, 64, 96, 128, 129, 256, 512, 1024, MOST};
    static void *made[MOST];
    FIND(cuStreamCreate, 2000, (void **, unsigned));
    FIND(cuStreamDestroy, 4000, (void *));
    void *nothing = begin();
    int count = 0;
    for (size_t at = 0; at < sizeof marks / sizeof *marks; at++) {
        for (; count < marks[at]; count++)
            must(cuStreamCreate(&made[count], 1), "cuStreamCreate");
        taken_by("streams_%lld", count);
    }
    for (int at = 0; at < MOST; at++)
        run(nothing, made[at], NULL);
    synchronise_all();
    taken("all_used");
    for (int at = 0; at < MOST; at++)
        must(cuStreamDestroy(made[at]), "cuStreamDestroy");
    taken("all_destroyed");
    for (int at = 0; at < 100; at++)
        must(cuStreamCreate(&made[at], 1), "cuStreamCreate");
    taken("100_again");
}
static void events(void) {
    FIND(cuEventCreate, 2000, (void **, unsigned));
    void *event;
    for (int at = 0; at < 100000; at++)
        must(cuEventCreate(&event, at & 1 ? 2 : 0), "cuEventCreate");
    taken("events_100000");
}
static void stack(void) {
    FIND(cuCtxSetLimit, 3010, (int, size_t));
    void *nothing = begin();
    for (int kib = 2; kib <= 64; kib *= 2) {
        must(cuCtxSetLimit(STACK_LIMIT, (size_t)kib * 1024), "cuCtxSetLimit");
        taken_by("stack_%lldk", kib);
    }
    run(nothing, stream, NULL);
    synchronise_all();
    taken("launched");
}
static void local_memory(void) {
    static const char form[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry big(.param .u64 out)\n{\n"
        "  .local .align 8 .b8 depot[%d];\n  .reg .b64 %%rd<8>;\n  .reg .b32 %%r<4>;\n"
        "  ld.param.u64 %%rd1, [out];\n  mov.u32 %%r1, %%tid.x;\n  mul.wide.u32 %%rd2, %%r1, 8;\n"
        "  mov.u64 %%rd3, depot;\n  cvta.local.u64 %%rd3, %%rd3;\n  add.u64 %%rd4, %%rd3, %%rd2;\n"
        "  st.volatile.u64 [%%rd4], %%rd2;\n  ld.volatile.u64 %%rd5, [%%rd3];\n  st.global.u64 [%%rd1], %%rd5;\n"
        "  ret;\n}\n";
    for (int bytes = 1024; bytes <= 65536; bytes *= 4) {
        char ptx[1024];
        snprintf(ptx, sizeof ptx, form, bytes);
        void *module = load(ptx), *big = function(module, "big");
        taken_by("local_%lld_got", bytes);
        pointer out = allocate(4096);
        run(big, stream, (void *[]){&out});
        synchronise_all();
        taken_by("local_%lld_launched", bytes);
    }
}
static void globals(void) {
    for (int mib = 16; mib <= 1024; mib *= 8) {
        char ptx[256];
        snprintf(ptx, sizeof ptx,
                 ".version 6.3\n.target sm_70\n.address_size 64\n.visible .global .align 8 .b8 x[%lld];\n"
                 ".visible .entry nothing()\n{\n  ret;\n}\n",
                 (long long)mib * MIB);
        void *module = load(ptx);
        taken_by("globals_of_%lld_mib_loaded", mib);
        run(function(module, "nothing"), stream, NULL);
        synchronise_all();
        taken_by("globals_of_%lld_mib_launched", mib);
    }
}
static void heap_of_kernels(void) {
    static const char ptx[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n"
        ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.visible .entry grab(.param .u64 out)\n{\n"
        "  .reg .b64 %rd<6>;\n  ld.param.u64 %rd1, [out];\n  mov.u64 %rd2, 1048576;\n"
        "  { .param .b64 p0; st.param.b64 [p0], %rd2; .param .b64 r0;\n"
        "    call.uni (r0), malloc, (p0); ld.param.b64 %rd3, [r0]; }\n"
        "  st.global.u64 [%rd1], %rd3;\n  ret;\n}\n";
    FIND(cuCtxSetLimit, 3010, (int, size_t));
    must(cuCtxSetLimit(HEAP_LIMIT, 256 * (size_t)MIB), "cuCtxSetLimit");
    taken("set_to_256_mib");
    void *grab = function(load(ptx), "grab");
    taken("got");
    pointer out = allocate(4096);
    run(grab, stream, (void *[]){&out});
    synchronise_all();
    taken("launched");
}
static void printf_of_kernels(void) {
    static const char ptx[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n"
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
        ".global .align 1 .b8 s[1] = {0};\n.visible .entry say()\n{\n"
        "  .reg .b64 %rd<6>;\n  .reg .b32 %r<3>;\n  mov.u64 %rd1, s;\n  cvta.global.u64 %rd1, %rd1;\n"
        "  mov.u64 %rd2, 0;\n  { .param .b64 p0; st.param.b64 [p0], %rd1; .param .b64 p1; st.param.b64 [p1], %rd2;\n"
        "    .param .b32 r0; call.uni (r0), vprintf, (p0, p1); ld.param.b32 %r1, [r0]; }\n  ret;\n}\n";
    FIND(cuCtxSetLimit, 3010, (int, size_t));
    must(cuCtxSetLimit(PRINTF_LIMIT, 128 * (size_t)MIB), "cuCtxSetLimit");
    begin();
    void *say = function(load(ptx), "say");
    taken("got");
    run(say, stream, NULL);
    synchronise_all();
    taken("printed");
}
static void graph_nodes(void) {
    FIND(cuStreamBeginCapture, 10010, (void *, int));
    FIND(cuStreamEndCapture, 10000, (void *, void **));
    FIND(cuGraphInstantiateWithFlags, 11040, (void **, void *, unsigned long long));
    FIND(cuGraphLaunch, 10000, (void *, void *));
    void *nothing = begin(), *graph, *exec;
    for (int nodes = 100; nodes <= 10000; nodes *= 10) {
        must(cuStreamBeginCapture(stream, RELAXED), "cuStreamBeginCapture");
        for (int at = 0; at < nodes; at++)
            run(nothing, stream, NULL);
        must(cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
        must(cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
        taken_by("graph_of_%lld_instantiated", nodes);
        must(cuGraphLaunch(exec, stream), "cuGraphLaunch");
        synchronise_all();
        taken_by("graph_of_%lld_launched", nodes);
    }
}

/* Setting 64 MiB took 128: is it always twice as much? */
static void managed_by_size(void) {
    FIND(cuMemAllocManaged, 6000, (pointer *, size_t, unsigned));
    FIND(cuMemsetD8, 3020, (pointer, unsigned char, size_t));
    FIND(cuMemFree, 3020, (pointer));
    for (int mib = 2; mib <= 512; mib *= 16) {
        pointer memory;
        must(cuMemAllocManaged(&memory, (size_t)mib * MIB, 1), "cuMemAllocManaged");
        must(cuMemsetD8(memory, 1, (size_t)mib * MIB), "cuMemsetD8");
        synchronise_all();
        taken_by("%lld_mib_set", mib);
        must(cuMemsetD8(memory, 1, (size_t)mib * MIB), "cuMemsetD8");
        synchronise_all();
        taken_by("%lld_mib_set_again", mib);
        must(cuMemFree(memory), "cuMemFree");
        taken_by("%lld_mib_freed", mib);
    }
}

static const struct question questions[] = {
    {"streams_by_number", streams_by_number},
    {"events", events},
    {"stack", stack},
    {"local_memory", local_memory},
    {"globals", globals},
    {"heap_of_kernels", heap_of_kernels},
    {"printf_of_kernels", printf_of_kernels},
    {"graph_nodes", graph_nodes},
    {"managed_by_size", managed_by_size},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
