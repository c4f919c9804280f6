#include "status.h"

const char *status_text(int status) {
    switch (status) {
#define STATUS(name, value, text, exception) \
    case value:                              \
        return text;
#include "status.def"
#undef STATUS
    default:
        return "unknown status";
    }
}

int status_is_known(int status) {
    switch (status) {
#define STATUS(name, value, text, exception) case value:
#include "status.def"
#undef STATUS
        return 1;
    default:
        return 0;
    }
}
