/* nvmlInit: nothing to do yet but to be a hook. */
#include "interposer.h"

nvmlReturn_t hook_nvmlInit_v2(void) {
    return real.nvmlInit_v2();
}
