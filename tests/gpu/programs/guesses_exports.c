/* Memory that was exported or bound to a multicast object: see guesses.h. */
#include "guesses.h"

#include <unistd.h>

static void exported(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    unsigned long long handle;
    int descriptor = -1;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    answer("export", cuMemExportToShareableHandle(&descriptor, handle, BY_DESCRIPTOR, 0));
    answer("release", cuMemRelease(handle));
    taken("released_with_descriptor_open");
    close(descriptor);
    taken("descriptor_closed");
}
/* Each step's name says what holds the memory then, and nothing else does. */
static void exported_copies(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemImportFromShareableHandle, 10020, (unsigned long long *, void *, int));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    unsigned long long handle, imported = 0;
    int first = -1;
    must(cuMemCreate(&handle, 64 * MIB, &properties, 0), "cuMemCreate");
    must(cuMemExportToShareableHandle(&first, handle, BY_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
    int second = dup(first);
    answer("release", cuMemRelease(handle));
    close(first);
    taken("a_copy_of_the_descriptor");
    answer("import", cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)second, BY_DESCRIPTOR));
    close(second);
    taken("an_import");
    answer("release_of_import", cuMemRelease(imported));
    taken("nothing");
}
static void bound_to_multicast(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemRelease, 10020, (unsigned long long));
    FIND(cuMulticastCreate, 12010, (unsigned long long *, const void *));
    FIND(cuMulticastAddDevice, 12010, (unsigned long long, int));
    FIND(cuMulticastBindMem, 12010,
         (unsigned long long, size_t, unsigned long long, size_t, size_t, unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_DESCRIPTOR, .location = {DEVICE, device}};
    struct {
        unsigned int devices;
        size_t size;
        unsigned long long handle_types, flags;
    } wanted = {1, 64 * MIB, BY_DESCRIPTOR, 0};
    unsigned long long memory, multicast = 0;
    int result = cuMulticastCreate(&multicast, &wanted);
    answer("create_with_one_device", result);
    if (result)
        return;
    answer("add_device", cuMulticastAddDevice(multicast, device));
    must(cuMemCreate(&memory, 64 * MIB, &properties, 0), "cuMemCreate");
    answer("bind", cuMulticastBindMem(multicast, 0, memory, 0, 64 * MIB, 0));
    answer("release", cuMemRelease(memory));
    taken("bound");
    answer("release_of_multicast", cuMemRelease(multicast));
    taken("nothing");
}

/* For network cards and other drivers: does its descriptor hold memory that is freed? */
static void dma_buf(void) {
    FIND(cuMemGetHandleForAddressRange, 11070, (void *, pointer, size_t, int, unsigned long long));
    int descriptor = -1;
    pointer memory = allocate(64 * MIB);
    int result = cuMemGetHandleForAddressRange(&descriptor, memory, 64 * MIB, BY_DESCRIPTOR, 0);
    if (result) {
        not_asked("the driver gives no dma-buf here (that needs NVIDIA's open kernel modules)");
        return;
    }
    answer("free", release(memory));
    taken("freed_with_descriptor_open");
    close(descriptor);
    taken("descriptor_closed");
}

/* Between machines, or processes: does the handle hold anything, and open what something else holds? */
static void fabric_handle(void) {
    FIND(cuMemCreate, 10020, (unsigned long long *, size_t, const void *, unsigned long long));
    FIND(cuMemExportToShareableHandle, 10020, (void *, unsigned long long, int, unsigned long long));
    FIND(cuMemImportFromShareableHandle, 10020, (unsigned long long *, void *, int));
    FIND(cuMemRelease, 10020, (unsigned long long));
    struct memory_properties properties = {.type = PINNED, .handle_types = BY_FABRIC, .location = {DEVICE, device}};
    unsigned long long made, imported;
    unsigned char handle[64];
    if (cuMemCreate(&made, 64 * MIB, &properties, 0)) {
        not_asked("the card makes no memory with fabric handles here (that needs NVSwitch and an IMEX channel)");
        return;
    }
    must(cuMemExportToShareableHandle(handle, made, BY_FABRIC, 0), "cuMemExportToShareableHandle");
    int while_held = cuMemImportFromShareableHandle(&imported, handle, BY_FABRIC);
    answer("import_while_held", while_held);
    if (!while_held)
        must(cuMemRelease(imported), "cuMemRelease of the import");
    must(cuMemRelease(made), "cuMemRelease");
    taken("with_the_handle_alone");
    answer("opens_what_nothing_holds", cuMemImportFromShareableHandle(&imported, handle, BY_FABRIC) == 0);
}

static const struct question questions[] = {
    {"exported", exported},
    {"exported_copies", exported_copies},
    {"bound_to_multicast", bound_to_multicast},
    {"fabric_handle", fabric_handle},
    {"dma_buf", dma_buf},
};

int main(int argc, char **argv) {
    return ask(questions, sizeof questions / sizeof *questions, argc, argv);
}
