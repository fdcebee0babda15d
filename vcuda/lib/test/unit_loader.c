/* The loader's way on systems whose libc has no dlopen: found among the loaded objects, by reading their tables. */
#include "../src/loader.c"

#include "check.h"

int main(void) {
    CHECK(gnu_hash("printf") == 0x156b2bb8, "the hash of printf is the one the format's description gives");
    CHECK(find_loaded("vcuda_no_such_function") == NULL, "a name that nobody defines is not found");
    CHECK(find_loaded("getpid") == dlsym(RTLD_DEFAULT, "getpid"), "a function of libc is found where it is");

    open_fn *opens = (open_fn *)find_or_load("dlopen");
    find_fn *finds = (find_fn *)find_or_load("dlsym");
    CHECK(opens && finds, "dlopen and dlsym are found");
    void *handle = opens ? opens("libm.so.6", RTLD_LAZY | RTLD_LOCAL) : NULL;
    CHECK(handle != NULL, "what is found opens libraries");
    CHECK(handle && finds && finds(handle, "cos") != NULL, "what is found finds symbols");
    CHECK(loader_open("/no/such/library.so") == NULL, "a missing file is NULL");
    return checked();
}
