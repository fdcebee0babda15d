/* cuInit: the moment at which a process becomes a user of the card. */
#include <errno.h>

#include "attachment.h"
#include "cuda/companions.h"
#include "interposer.h"
#include "log_once.h"
#include "note.h"
#include "paths.h"

CUresult hook_cuInit(unsigned int flags) {
    int saved = errno;
    if (!vcuda_interposer_open()) {
        char path[PATHS_MAX];
        vcuda_log_once("CUDA is refused in this container: the driver at %s cannot be opened",
                       paths_real(path, VCUDA_REAL_NAME) ? path : VCUDA_REAL_NAME);
        note_text(NULL, VCUDA_NOTE_CUDA_REFUSED, "driver " VCUDA_REAL_NAME " cannot be opened");
        errno = saved;
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    companions_open();
    enum vcuda_attachment attachment = vcuda_attach();
    errno = saved;
    if (attachment == VCUDA_REFUSED)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    return real.cuInit(flags);
}
