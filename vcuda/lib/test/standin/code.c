/* Modules, libraries, functions: what a kernel is called and how long it runs. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

enum { LOCAL_BYTES = 3 }; /* among attributes of functions */

/* `spin_5ms`, `gemm_40us`, `tick_800ns`: the length. Ending in `_us`, or `spin`: -1, the first parameter says. */
static int64_t length_of(const char *name) {
    size_t end = strlen(name);
    if (strcmp(name, "spin") == 0 || (end > 3 && strcmp(name + end - 3, "_us") == 0))
        return -1;
    const char *digits = strrchr(name, '_');
    if (!digits || !isdigit((unsigned char)digits[1]))
        return config_read()->kernel_ns;
    char *unit;
    long long value = strtoll(digits + 1, &unit, 10);
    if (strcmp(unit, "ms") == 0)
        return value * 1000000;
    if (strcmp(unit, "us") == 0)
        return value * 1000;
    return strcmp(unit, "ns") == 0 ? value : config_read()->kernel_ns;
}

/* `spin_local4096_5ms`: so much local memory a thread. In PTX, what the arrays in its body have. */
static int64_t local_of(const struct module *module, const char *name) {
    const char *digits = strstr(name, "_local");
    int64_t bytes = digits ? strtoll(digits + strlen("_local"), NULL, 10) : 0;
    char entry[256];
    snprintf(entry, sizeof entry, ".entry %s", name);
    const char *at = module->ptx ? strstr(module->ptx, entry) : NULL;
    const char *end = at ? strstr(at + 1, ".entry") : NULL;
    while (at && (at = strstr(at, ".local ")) && (!end || at < end)) {
        const char *room = at + strcspn(at, "[;");
        bytes += *room == '[' ? strtoll(room + 1, NULL, 10) : 0;
        at = room;
    }
    return bytes;
}

int64_t kernel_ns(const struct function *function, void **params) {
    if (function->fixed_ns >= 0)
        return function->fixed_ns;
    uint32_t microseconds = 0;
    if (params && params[0])
        memcpy(&microseconds, params[0], sizeof microseconds);
    return (int64_t)microseconds * 1000;
}

bool kernel_alone(const struct context *context, const unsigned int grid[3]) {
    return (uint64_t)grid[0] * grid[1] * grid[2] >= (uint64_t)context->device->hold.config->sms;
}

/* PTX is text and says which entries it has; of a binary image every name is believed. */
static bool is_ptx(const void *image) {
    const char *text = image;
    for (int at = 0; at < 256 && text[at]; at++)
        if (strncmp(text + at, ".version", 8) == 0)
            return true;
        else if (!isprint((unsigned char)text[at]) && !isspace((unsigned char)text[at]))
            return false;
    return false;
}

static bool declares(const struct module *module, const char *keyword, const char *name) {
    if (!module->ptx)
        return true;
    size_t length = strlen(name);
    for (const char *at = module->ptx; (at = strstr(at, keyword)); at += strlen(keyword)) {
        const char *end = at + strcspn(at, "(;={\n");
        for (const char *word = at; (word = strstr(word, name)) && word < end; word += length) {
            char after = word[length], before = word[-1];
            if (isspace((unsigned char)before) && !isalnum((unsigned char)after) && after != '_' && after != '$')
                return true;
        }
    }
    return false;
}

static bool eager(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode && strcmp(mode, "EAGER") == 0;
}

/* With lazy loading, the default, a module takes its memory when its first function is looked up. */
static bool module_charge(struct module *module) {
    if (module->charged)
        return true;
    struct context *context = module->context ? module->context : context_current();
    if (!context)
        return true;
    int64_t bytes = granules(config_read()->module_bytes);
    if (!device_charge(context->device, bytes))
        return false;
    module->charged = bytes;
    if (!module->context) {
        module->context = context;
        module->next = context->modules;
        context->modules = module;
    }
    return true;
}

static CUresult load(struct context *context, const void *image, struct module **out) {
    if (!out || !image)
        return CUDA_ERROR_INVALID_VALUE;
    struct module *module = calloc(1, sizeof *module);
    if (!module)
        return CUDA_ERROR_OUT_OF_MEMORY;
    module->context = context;
    module->is_library = context == NULL;
    if (is_ptx(image))
        module->ptx = strdup(image);
    process_lock();
    CUresult result = !eager() || module_charge(module) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS && context) {
        module->next = context->modules;
        context->modules = module;
    }
    process_unlock();
    if (result == CUDA_SUCCESS)
        *out = module;
    else
        free(module);
    return result;
}

void module_detach(struct module *module) {
    struct context *context = module->context;
    for (struct module **at = context ? &context->modules : NULL; at && *at; at = &(*at)->next)
        if (*at == module) {
            *at = module->next;
            break;
        }
    if (module->charged && context)
        device_charge(context->device, -module->charged);
    module->charged = 0;
    module->context = NULL;
    module->next = NULL;
    for (struct function *function = module->functions; function; function = function->next)
        function->loaded = false;
}

void module_free(struct module *module) {
    module_detach(module);
    while (module->functions) {
        struct function *function = module->functions;
        module->functions = function->next;
        free(function->name);
        free(function);
    }
    free(module->ptx);
    free(module);
}

bool function_local(struct context *context, const struct function *function) {
    int64_t bytes = function->attributes[LOCAL_BYTES];
    return bytes <= context->local_bytes || context_threads(context, context->limit[0], bytes);
}

bool function_load(struct function *function) {
    if (function->loaded)
        return true;
    process_lock();
    function->loaded = module_charge(function->module);
    process_unlock();
    return function->loaded;
}

static CUresult find(struct module *module, const char *name, struct function **out) {
    if (!module || !name || !out)
        return CUDA_ERROR_INVALID_VALUE;
    if (!declares(module, ".entry", name))
        return CUDA_ERROR_NOT_FOUND;
    process_lock();
    struct function *function = module->functions;
    while (function && strcmp(function->name, name) != 0)
        function = function->next;
    if (!function && (function = calloc(1, sizeof *function))) {
        function->module = module;
        function->name = strdup(name);
        function->fixed_ns = length_of(name);
        function->block[0] = function->block[1] = function->block[2] = 1;
        function->attributes[0] = 1024;
        function->attributes[LOCAL_BYTES] = (int)local_of(module, name);
        function->attributes[4] = 32;
        function->attributes[5] = function->attributes[6] = 90;
        function->next = module->functions;
        module->functions = function;
    }
    process_unlock();
    *out = function;
    return function ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The entries of PTX, in its order; a binary image has none that the model knows of. NULL: count them. */
static CUresult enumerate(struct module *module, struct function **list, unsigned int room, unsigned int *count) {
    char name[256];
    *count = 0;
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    for (const char *at = module->ptx; at && (at = strstr(at, ".entry ")); at++)
        if (sscanf(at, ".entry %255[A-Za-z0-9_$]", name) == 1) {
            CUresult result = list && *count < room ? find(module, name, &list[*count]) : CUDA_SUCCESS;
            if (result != CUDA_SUCCESS)
                return result;
            ++*count;
        }
    return CUDA_SUCCESS;
}
CUresult model_cuModuleGetFunctionCount(unsigned int *count, CUmodule module) {
    return count ? enumerate(module, NULL, 0, count) : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuModuleEnumerateFunctions(CUfunction *list, unsigned int room, CUmodule module) {
    unsigned int count;
    return list ? enumerate(module, list, room, &count) : CUDA_ERROR_INVALID_VALUE;
}
CUresult model_cuLibraryGetKernelCount(unsigned int *count, CUlibrary library) {
    return model_cuModuleGetFunctionCount(count, library);
}
CUresult model_cuLibraryEnumerateKernels(CUkernel *list, unsigned int room, CUlibrary library) {
    return model_cuModuleEnumerateFunctions(list, room, library);
}

CUresult model_cuModuleLoadData(CUmodule *out, const void *image) {
    NEED_CONTEXT(context);
    return load(context, image, out);
}
CUresult model_cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count, void *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    return model_cuModuleLoadData(out, image);
}
CUresult model_cuModuleLoadFatBinary(CUmodule *out, const void *image) {
    return model_cuModuleLoadData(out, image);
}

static CUresult load_file(struct context *context, const char *path, struct module **out) {
    char text[65536] = "";
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    size_t got = fread(text, 1, sizeof text - 1, file);
    text[got] = '\0';
    fclose(file);
    return load(context, text, out);
}
CUresult model_cuModuleLoad(CUmodule *out, const char *path) {
    NEED_CONTEXT(context);
    return load_file(context, path, out);
}
CUresult model_cuModuleUnload(CUmodule module) {
    NEED_CONTEXT(context);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    exec_device_wait(context->device);
    process_lock();
    module_free(module);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuModuleGetLoadingMode(int *mode) {
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = eager() ? 1 : 2;
    return CUDA_SUCCESS;
}
CUresult model_cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
    NEED_CONTEXT(context);
    (void)context;
    CUresult result = find(module, name, out);
    if (result == CUDA_SUCCESS && !function_load(*out))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return result;
}
CUresult model_cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name) {
    NEED_CONTEXT(context);
    if (!module || !name)
        return CUDA_ERROR_INVALID_VALUE;
    if (!declares(module, ".global", name))
        return CUDA_ERROR_NOT_FOUND;
    uintptr_t at = 0;
    process_lock();
    CUresult result = memory_alloc(context, 4096, GLOBAL, &at);
    process_unlock();
    if (pointer)
        *pointer = at;
    if (bytes)
        *bytes = 4096;
    return result;
}

/* Libraries belong to no context until one of their kernels is wanted in one. */
CUresult model_cuLibraryLoadData(CUlibrary *out, const void *code, void *jit, void **jit_values, unsigned int jit_count,
                                 void *options, void **values, unsigned int count) {
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return load(NULL, code, out);
}
CUresult model_cuLibraryLoadFromFile(CUlibrary *out, const char *path, void *jit, void **jit_values,
                                     unsigned int jit_count, void *options, void **values, unsigned int count) {
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return load_file(NULL, path, out);
}
CUresult model_cuLibraryUnload(CUlibrary library) {
    if (!library)
        return CUDA_ERROR_INVALID_HANDLE;
    process_lock();
    module_free(library);
    process_unlock();
    return CUDA_SUCCESS;
}
CUresult model_cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
    return find(library, name, out);
}
CUresult model_cuLibraryGetModule(CUmodule *out, CUlibrary library) {
    NEED_CONTEXT(context);
    (void)context;
    if (!out || !library)
        return CUDA_ERROR_INVALID_VALUE;
    *out = library;
    return CUDA_SUCCESS;
}
CUresult model_cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name) {
    return model_cuModuleGetGlobal_v2(pointer, bytes, library, name);
}
CUresult model_cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    NEED_CONTEXT(context);
    (void)context;
    if (!out || !kernel)
        return CUDA_ERROR_INVALID_VALUE;
    *out = kernel;
    return function_load(kernel) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuKernelGetLibrary(CUlibrary *out, CUkernel kernel) {
    if (!out || !kernel)
        return CUDA_ERROR_INVALID_VALUE;
    *out = kernel->module;
    return CUDA_SUCCESS;
}
CUresult model_cuFuncGetName(const char **name, CUfunction function) {
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *name = function->name;
    return CUDA_SUCCESS;
}
CUresult model_cuKernelGetName(const char **name, CUkernel kernel) {
    return model_cuFuncGetName(name, kernel);
}
CUresult model_cuFuncGetModule(CUmodule *out, CUfunction function) {
    if (!out || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *out = function->module;
    return CUDA_SUCCESS;
}
CUresult model_cuFuncLoad(CUfunction function) {
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    return function_load(function) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult model_cuFuncIsLoaded(int *state, CUfunction function) {
    if (!state || !function)
        return CUDA_ERROR_INVALID_VALUE;
    *state = function->loaded;
    return CUDA_SUCCESS;
}

enum { ATTRIBUTES = sizeof((struct function *)0)->attributes / sizeof(int) };

CUresult model_cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    if (!value || !function || attribute < 0 || attribute >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    *value = function->attributes[attribute];
    return CUDA_SUCCESS;
}
CUresult model_cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    if (!function || attribute < 8 || attribute >= ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute] = value;
    return CUDA_SUCCESS;
}
CUresult model_cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
    (void)device;
    return model_cuFuncGetAttribute(value, attribute, kernel);
}
CUresult model_cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device) {
    (void)device;
    return model_cuFuncSetAttribute(kernel, attribute, value);
}
CUresult model_cuFuncSetCacheConfig(CUfunction function, int config) {
    (void)config;
    return function ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
CUresult model_cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device) {
    (void)device;
    return model_cuFuncSetCacheConfig(kernel, config);
}
