/*
 * What machine the stand-in pretends to be. Read once per process, in this order, the first that says a key wins:
 * environment `VCUDA_STANDIN_<KEY>` (dots as underscores), then a file of `key = value` lines, then the defaults.
 * The file is the one named by VCUDA_STANDIN_CONFIG, else `standin.conf` beside this library.
 *
 *   cards            how many (default 1)                state        directory shared by all processes
 *   model            h200 h100 a100 a10 l4 t4 small      quantum_us   time slice between processes (2000)
 *   memory_mib  sms  over the model's own                kernel_us    length of a kernel that names none (10)
 *   context_mib module_kib  what a context, a module     driver       NVML's driver version string
 *                    takes on the card
 *   switch_us        time of the card between two processes' turns (0)
 *   load_us          time of the caller that a function's first launch takes beside: it loads the code (0)
 *   costs            what the next six keys are unless set: h100 (default), or free: no call costs anything
 *   launch_ns        time of the caller that a launch takes (3600): after reach_percent of it (50) it reaches the card
 *   record_ns        the same of the record of an event that takes times, which it reaches at the end (1000)
 *   host_ns          from a host function's turn until it runs, beside what the machine takes (50000)
 *   gap_ns           time of the card before a kernel behind other work of its stream (950)
 *   start_ns         the same on an idle stream (0)
 *   step_ns          in whose steps an event says its time (32; free: 500)
 *   stamp_ns         time of the card that the record of such an event takes on its stream (1250)
 *   unlisted_kib     what a context takes beyond what NVML lists as its process's
 *   link             NV18, PIX, PHB, SYS: between all    mig          1: MIG mode is on
 *   slice_us         time slice of this process's own, where it asks the driver for another one (quantum_us)
 *   turns            slice: of time, whatever runs (default); kernel: a kernel runs out before the next turn
 *   card.<i>.<key>   model memory_mib sms uuid pci       pools        0: no memory pools
 *   card.<i>.uuid    MIG-...: the device is an instance of a divided card, which NVML has above it;
 *                    MIG-GPU-...: the same, named by its place, as drivers before R470 did
 *   instances        1: the same of all cards, under the UUIDs that their numbers decide
 *   card.<i>.links   a row as `nvidia-smi topo -m` prints it: X NV18 SYS ...
 *   lost             index of a card that has fallen off the bus
 *   fail             name=code[@n][,...]: that call fails, always or only the nth time
 *   trace            a file: look-ups, calls and tables asked for are appended to it, a line each
 *   callback         1: cuInit looks up symbols through dlsym while it runs
 *   capture_ends     1: another thread ends a capture just as memory is allocated in it
 */
#ifndef STANDIN_CONFIG_H
#define STANDIN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_CARDS = 16, MIG_GI = 7, MIG_CI = 0 }; /* the place of every MIG instance on its card */

struct card_config {
    int index;
    char name[96], uuid_text[64], pci_text[32];
    unsigned char uuid[16], parent[16]; /* the parent's: as `uuid` unless the device is a MIG instance */
    int64_t memory_bytes, context_bytes, unlisted_bytes;
    int sms, major, minor, clock_khz, memory_clock_khz, bus_bits, l2_bytes, power_w, nvlinks;
    unsigned int pci_bus;
    bool mig, lost, instance, placed;
    char link[MAX_CARDS][8]; /* to each card, in the words of `nvidia-smi topo -m` */
};

struct config {
    int cards;
    struct card_config card[MAX_CARDS];
    char state[256], driver[32];
    int64_t quantum_ns, slice_ns, switch_ns, kernel_ns, load_ns, launch_ns, reach_ns, record_ns, host_ns, gap_ns,
        start_ns, stamp_ns, step_ns, module_bytes;
    bool callback, capture_ends, pools, whole_kernels;
};

const struct config *config_read(void);
/* The card whose instance this device is, as NVML shows it. */
struct card_config config_parent(const struct card_config *instance);
/* The value of a key, or NULL; valid until the next call from this thread. */
const char *config_text(const char *key);

#endif
