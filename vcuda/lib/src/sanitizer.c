/* For programs that are built with the address sanitizer. Its runtime ends a program at its start if a library lies
 * before it, as one of /etc/ld.so.preload does: calls might then miss the runtime. This library defines none of the
 * functions that the runtime replaces, so it turns that check off. The runtime asks the first definition of this name
 * for its defaults; a program's own definition and ASAN_OPTIONS go before.
 */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void) {
    return "verify_asan_link_order=0";
}
