/* A driver library with two cards, for the real Python binding to call: layouts are nvml.h's, values made up.
 * What is not here does not exist in this "driver", and the binding says FUNCTION_NOT_FOUND. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef unsigned u32;
typedef unsigned long long u64;
typedef struct card { u32 index; } *device;

enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TIMEOUT = 10 };

static struct card cards[2] = {{0}, {1}};
static int events_left = 1;

int nvmlInitWithFlags(u32 flags) { return flags ? INVALID_ARGUMENT : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "made up"; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(u32 index, device *out) {
  if (index > 1) return INVALID_ARGUMENT;
  *out = &cards[index];
  return OK;
}
int nvmlDeviceGetUUID(device d, char *out, u32 size) {
  snprintf(out, size, "GPU-%08x-0000-4000-8000-00000000000%u", 0xabcd0000u + d->index, d->index);
  return OK;
}
int nvmlDeviceGetName(device d, char *out, u32 size) { (void)d; snprintf(out, size, "NVIDIA H200"); return OK; }
int nvmlDeviceGetMinorNumber(device d, u32 *out) { *out = d->index; return OK; }

struct memory { u32 version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(device d, struct memory *m) {
  (void)d;
  if (m->version != 0x02000028) return 25;
  m->total = 143771ull << 20; m->reserved = 603ull << 20; m->used = 7ull << 30;
  m->free = m->total - m->reserved - m->used;
  return OK;
}

struct pci { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlDeviceGetPciInfo_v3(device d, struct pci *p) {
  memset(p, 0, sizeof *p);
  snprintf(p->bus_id, sizeof p->bus_id, "00000000:%02X:00.0", 0x3b + d->index);
  return OK;
}
int nvmlDeviceGetMigMode(device d, u32 *now, u32 *pending) { (void)d; *now = *pending = 0; return OK; }

struct field { u32 id, scope; long long stamp, latency; u32 type; int code; u64 value; };
int nvmlDeviceGetFieldValues(device d, int count, struct field *f) {
  for (int i = 0; i < count; i++) {
    f[i].code = f[i].id == 230 ? OK : NOT_SUPPORTED;
    f[i].value = d->index == 1 ? 1 : 0; /* card 1 asks for a reset */
  }
  return OK;
}
int nvmlDeviceGetRemappedRows(device d, u32 *a, u32 *b, u32 *c, u32 *e) {
  (void)d; *a = *b = *c = *e = 0;
  return OK;
}
int nvmlDeviceGetMemoryAffinity(device d, u32 size, unsigned long *set, u32 scope) {
  if (scope != 0) return INVALID_ARGUMENT;
  for (u32 i = 0; i < size; i++) set[i] = 0;
  set[0] = 1ul << d->index;
  return OK;
}

struct rates { u32 gpu, memory; };
int nvmlDeviceGetUtilizationRates(device d, struct rates *r) { (void)d; r->gpu = 42; r->memory = 3; return OK; }

struct process { u32 pid; u64 used; u32 gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(device d, u32 *count, struct process *p) {
  (void)d;
  if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
  *count = 2;
  p[0] = (struct process){4242, 5ull << 30, ~0u, ~0u};
  p[1] = (struct process){4243, ~0ull, ~0u, ~0u}; /* memory not available */
  return OK;
}

struct sample { u32 pid; u64 stamp; u32 sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(device d, struct sample *s, u32 *count, u64 since) {
  if (d->index == 1) { *count = 0; return OK; } /* success with none: the binding raises "success" */
  if (*count < 1) { *count = 1; return INSUFFICIENT_SIZE; }
  *count = 1;
  s[0] = (struct sample){4242, since + 5, 33, 1, 0, 0};
  return OK;
}

int nvmlDeviceGetTopologyCommonAncestor(device a, device b, u32 *level) { (void)a; (void)b; *level = 30; return OK; }
int nvmlDeviceGetNvLinkState(device d, u32 link, u32 *active) {
  (void)d;
  if (link >= 18) return INVALID_ARGUMENT;
  *active = 1;
  return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(device d, u32 link, u32 *type) { (void)d; (void)link; *type = 2; return OK; }

struct event { device d; u64 type, data; u32 gi, ci; };
int nvmlEventSetCreate(void **set) { *set = cards; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceGetSupportedEventTypes(device d, u64 *types) { (void)d; *types = ~0ull; return OK; }
int nvmlDeviceRegisterEvents(device d, u64 types, void *set) { (void)d; (void)set; return types & 8 ? OK : INVALID_ARGUMENT; }
int nvmlEventSetWait_v2(void *set, struct event *e, u32 ms) {
  (void)set; (void)ms;
  if (events_left-- > 0) { *e = (struct event){&cards[0], 8, 79, ~0u, ~0u}; return OK; }
  usleep(10000);
  return TIMEOUT;
}
