#include "observe/dump.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "base/error.h"
#include "settings/outputs.h"

static void add_entries(cJSON *header, const Params *params, const char *prefix, size_t *offset)
{
    if (!params) return;
    for (int n = 0; n < params->views; n++) {
        const View *v = &params->view[n];
        char name[96];
        snprintf(name, sizeof name, "%s.%s", prefix, v->name);
        cJSON *entry = cJSON_AddObjectToObject(header, name);
        cJSON_AddStringToObject(entry, "dtype", sizeof(acc) == 8 ? "F64" : "F32");
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        if (!v->vector) cJSON_AddItemToArray(shape, cJSON_CreateNumber(v->whole_rows));
        cJSON_AddItemToArray(shape, cJSON_CreateNumber(v->whole_cols));
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*offset));
        *offset += params_whole_size(v) * sizeof(acc);
        cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*offset));
    }
    add_entries(header, params->next, prefix, offset);
}

const char *dump_open(Dump *dump, const char *path, const Params *params, const Kernels *kernels, bool writes)
{
    *dump = (Dump){.on = true, .path = path, .kernels = *kernels};
    if (!writes) return NULL;
    dump->file = fopen(path, "wb");
    if (!dump->file) return complain("--dump %s: %s", path, strerror(errno));
    size_t offset = 0;
    cJSON *header = cJSON_CreateObject();
    add_entries(header, params, "grad", &offset);
    add_entries(header, params, "final", &offset);
    char *text = cJSON_PrintUnformatted(header);
    if (!text) fatal("out of memory for --dump %s", path);
    uint64_t used = strlen(text), length = (used + 7) / 8 * 8; /* padded with spaces, so that the data is aligned */
    output_write(dump->file, "dump", path, &length, sizeof length);
    output_write(dump->file, "dump", path, text, used);
    output_write(dump->file, "dump", path, "       ", length - used);
    free(text);
    cJSON_Delete(header);
    return NULL;
}

/* Writes the whole parameters in the order of the table, which is the order of the header's entries. */
static void dump_views(Dump *dump, const Params *params, bool grads)
{
    for (int n = 0; n < params->views; n++) {
        const View *v = &params->view[n];
        size_t whole = params_whole_size(v);
        acc *host = malloc(whole * sizeof *host);
        if (!host) fatal("out of memory for --dump %s", dump->path);
        params_collect(params, &dump->kernels, v, grads, host);
        if (dump->file) output_write(dump->file, "dump", dump->path, host, whole * sizeof *host);
        free(host);
    }
    if (params->next) dump_views(dump, params->next, grads);
}

void dump_gradients(Dump *dump, const Params *params)
{
    if (dump->on) dump_views(dump, params, true);
}

void dump_weights(Dump *dump, const Params *params)
{
    if (!dump->on) return;
    dump_views(dump, params, false);
    if (!dump->file) return;
    output_close(dump->file, "dump", dump->path);
    dump->file = NULL;
}
