/* A program that calls the driver as it is told, so that tests can say in their own words what happens.
 *
 * Each line of input is a call:  [real:]name argument...   and gets a line of answer:  result output...
 *   42 -1 0x10   a number                  &        eight bytes for output, printed afterwards
 *   &=42         the same, with 42 in it   x0a0b..  bytes of a structure, printed afterwards
 *   "text        a string                  f3       the open file descriptor 3
 * A name is looked up in libcuda.so.1 (nvml...: libnvidia-ml.so.1) as any program would, after `real:` in the library
 * named by REAL_CUDA or REAL_NVML: what the card really says. `@3020:cuMemAlloc` and `@3020/2:...` ask the resolver.
 * Any other name (open) is libc's. Lines that begin with a dot are for the program itself: .fork .exec .threads .exit
 * .pid .closefds .runtime
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARGUMENTS 10
#define BYTES 4096

typedef intptr_t function(intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t, intptr_t,
                          intptr_t);

struct argument {
    enum { NUMBER, OUTPUT, STRUCT } kind;
    intptr_t value;
    size_t size;
    _Alignas(16) unsigned char bytes[BYTES];
};

static void *library_of(const char *name, bool real) {
    bool nvml = strncmp(name, "nvml", 4) == 0;
    const char *path = nvml ? "libnvidia-ml.so.1" : "libcuda.so.1";
    if (real)
        path = getenv(nvml ? "REAL_NVML" : "REAL_CUDA");
    return path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static function *find(const char *name) {
    bool real = strncmp(name, "real:", 5) == 0;
    function *found = NULL;
    if (real)
        name += 5;
    if (*name == '@') {
        char *end;
        long version = strtol(name + 1, &end, 10), flags = *end == '/' ? strtol(end + 1, &end, 10) : 0;
        function *resolve = NULL;
        int status;
        *(void **)&resolve = dlsym(library_of("cu", real), "cuGetProcAddress_v2");
        if (resolve)
            resolve((intptr_t)(end + 1), (intptr_t)&found, version, flags, (intptr_t)&status, 0, 0, 0, 0, 0);
        return found;
    }
    bool driver = strncmp(name, "cu", 2) == 0 || strncmp(name, "nvml", 4) == 0;
    void *library = driver ? library_of(name, real) : RTLD_DEFAULT;
    if (library || !driver)
        *(void **)&found = dlsym(library, name);
    return found;
}

static bool parse(struct argument *argument, const char *word) {
    memset(argument, 0, sizeof *argument);
    if (*word == '&') {
        uint64_t value = word[1] == '=' ? strtoull(word + 2, NULL, 0) : 0;
        memcpy(argument->bytes, &value, sizeof value);
        argument->kind = OUTPUT;
        argument->size = 8;
    } else if (*word == 'x') {
        argument->kind = STRUCT;
        unsigned byte;
        for (const char *at = word + 1; argument->size < BYTES && sscanf(at, "%2x", &byte) == 1; at += 2)
            argument->bytes[argument->size++] = (unsigned char)byte;
    } else if (*word == '"') {
        argument->kind = NUMBER;
        snprintf((char *)argument->bytes, BYTES, "%s", word + 1);
        argument->value = (intptr_t)argument->bytes;
        return true;
    } else {
        argument->kind = NUMBER;
        argument->value = *word == '-' ? (intptr_t)strtoll(word, NULL, 0) : (intptr_t)strtoull(word, NULL, 0);
        return true;
    }
    argument->value = (intptr_t)argument->bytes;
    return true;
}

static void call(char *line, FILE *to) {
    static __thread struct argument argument[ARGUMENTS];
    intptr_t value[ARGUMENTS] = {0};
    int count = 0;
    char *rest = NULL, *name = strtok_r(line, " \n", &rest);
    for (char *word; count < ARGUMENTS && (word = strtok_r(NULL, " \n", &rest)); count++) {
        parse(&argument[count], word);
        value[count] = argument[count].value;
    }
    function *target = name ? find(name) : NULL;
    if (!target) {
        fprintf(to, "missing\n");
        return;
    }
    int result =
        (int)target(value[0], value[1], value[2], value[3], value[4], value[5], value[6], value[7], value[8], value[9]);
    fprintf(to, "%d", result);
    for (int i = 0; i < count; i++) {
        uint64_t number;
        memcpy(&number, argument[i].bytes, sizeof number);
        if (argument[i].kind == OUTPUT)
            fprintf(to, " %" PRIu64, number);
        else if (argument[i].kind == STRUCT) {
            fprintf(to, " x");
            for (size_t at = 0; at < argument[i].size; at++)
                fprintf(to, "%02x", argument[i].bytes[at]);
        }
    }
    fprintf(to, "\n");
}

/* `.runtime`: the primary context of device 0 as the CUDA runtime gets it, past every exported name: from the driver's
 * export table. Current from then on; its handle. */
static void as_the_runtime(void) {
    static const unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                         0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
    struct {
        size_t bytes;
        int (*entry[8])(void **, int);
    } const *table = NULL;
    void *context = NULL;
    function *tables = find("cuGetExportTable"), *set = find("cuCtxSetCurrent");
    int result = (int)tables((intptr_t)&table, (intptr_t)id, 0, 0, 0, 0, 0, 0, 0, 0);
    if (!result)
        result = table->entry[1](&context, 0);
    if (!result)
        result = (int)set((intptr_t)context, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    printf("%d %" PRIu64 "\n", result, (uint64_t)(uintptr_t)context);
}

/* `.threads 8 1000 cuMemAlloc_v2 & 4096`: so many threads make the call so many times; how often it returned 0. */
struct work {
    char line[1024];
    long times, good;
};

static void *work(void *argument) {
    struct work *mine = argument;
    for (long i = 0; i < mine->times; i++) {
        char line[1024], *answer = NULL;
        size_t size = 0;
        strcpy(line, mine->line);
        FILE *to = open_memstream(&answer, &size);
        call(line, to);
        fclose(to);
        mine->good += strncmp(answer, "0", 1) == 0 && (answer[1] == ' ' || answer[1] == '\n');
        free(answer);
    }
    return NULL;
}

static void in_threads(const char *text) {
    int count = 0, used = 0;
    long times = 0, good = 0;
    pthread_t thread[64];
    static struct work works[64];
    sscanf(text, "%d %ld %n", &count, &times, &used);
    for (int i = 0; i < count && i < 64; i++) {
        works[i] = (struct work){.times = times};
        snprintf(works[i].line, sizeof works[i].line, "%s", text + used);
        pthread_create(&thread[i], NULL, work, &works[i]);
    }
    for (int i = 0; i < count && i < 64; i++) {
        pthread_join(thread[i], NULL);
        good += works[i].good;
    }
    printf("%ld\n", good);
}

int main(int argc, char **argv) {
    static char line[65536];
    (void)argc;
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, ".fork", 5) == 0) { /* the child obeys from now on, until it exits */
            pid_t child = fork();
            if (child > 0) {
                int status;
                waitpid(child, &status, 0);
                printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
            } else {
                printf("child\n");
            }
        } else if (strncmp(line, ".exec", 5) == 0) {
            printf("exec\n");
            fflush(stdout);
            execv("/proc/self/exe", argv);
        } else if (strncmp(line, ".threads ", 9) == 0) {
            in_threads(line + 9);
        } else if (strncmp(line, ".exit", 5) == 0) {
            printf("bye\n");
            fflush(stdout);
            _exit(0);
        } else if (strncmp(line, ".runtime", 8) == 0) {
            as_the_runtime();
        } else if (strncmp(line, ".pid", 4) == 0) {
            printf("%d\n", (int)getpid());
        } else if (strncmp(line, ".closefds", 9) == 0) {
            for (int fd = 3; fd < 4096; fd++)
                close(fd);
            printf("closed\n");
        } else {
            call(line, stdout);
        }
        fflush(stdout);
    }
    return 0;
}
