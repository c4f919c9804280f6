#include "store.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"

const char *store_text(int error, char text[STORE_TEXT_SIZE]) {
    char words[CUDA_TEXT_SIZE];

    snprintf(text, STORE_TEXT_SIZE, "%s",
             error < STORE_DRIVER ? strerror(error)
                                  : cuda_text((CUresult)(error - STORE_DRIVER), words));
    return text;
}
