#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

const char *kernels_choose(Kernels *kernels, const char *choice)
{
    char known[256] = "";
    for (int v = 0; v < kernels->variant_count; v++) {
        const Variant *variant = &kernels->variants[v];
        if (strcmp(choice, variant->name) == 0) {
            variant->use(kernels);
            return NULL;
        }
        size_t length = strlen(known);
        snprintf(known + length, sizeof known - length, " %s", variant->name);
    }
    return complain("--kernel %s: no such kernel on the %s; there are:%s", choice, kernels->backend, known);
}
