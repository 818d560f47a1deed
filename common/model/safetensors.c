#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPES] = {
    [DTYPE_F64] = {"F64", 8}, [DTYPE_F32] = {"F32", 4}, [DTYPE_BF16] = {"BF16", 2}, [DTYPE_I64] = {"I64", 8}};

static const char HEAD[] = "lm_head.weight", EMBEDDING[] = "model.embed_tokens.weight";
enum { LARGEST_HEADER = 100000000 }; /* the format's own limit, in bytes */

struct Safetensors {
    Tensor *tensor;
    int tensors;
    void *mapped;
    size_t bytes;
};

/* --- reading --- */

/* The item as a whole number of at least 0; -1 if it is something else. */
static double whole_number(const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble == floor(item->valuedouble)
               ? item->valuedouble
               : -1;
}

/* Fills `t` from one entry of the header. `data` is where the tensors begin in the file, `available` the bytes from
 * there to its end. Returns NULL or what is wrong. */
static const char *read_entry(Tensor *t, const cJSON *entry, const char *data, size_t available)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int d = 0;
    while (d < DTYPES && !(cJSON_IsString(dtype) && strcmp(dtype->valuestring, dtypes[d].name) == 0)) d++;
    if (d == DTYPES) return "a dtype other than F64, F32, BF16, I64";
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > 8 || !cJSON_IsArray(offsets) ||
        cJSON_GetArraySize(offsets) != 2)
        return "a malformed entry";
    if (snprintf(t->name, sizeof t->name, "%s", entry->string) >= (int)sizeof t->name) return "a name that is too long";
    t->dtype = (Dtype)d;
    t->dims = cJSON_GetArraySize(shape);
    t->count = 1;
    for (int i = 0; i < t->dims; i++) {
        double size = whole_number(cJSON_GetArrayItem(shape, i));
        if (size < 0) return "a malformed shape";
        if (size > (double)available || (double)t->count * size > (double)available)
            return "a shape that is larger than the file";
        t->shape[i] = (int64_t)size;
        t->count *= (size_t)t->shape[i];
    }
    double begin = whole_number(cJSON_GetArrayItem(offsets, 0)), end = whole_number(cJSON_GetArrayItem(offsets, 1));
    if (begin < 0 || end > (double)available || end - begin != (double)(t->count * dtypes[t->dtype].size))
        return "a tensor that lies outside the file or has the wrong size";
    t->data = data + (size_t)begin;
    return NULL;
}

static int by_place(const void *a, const void *b)
{
    const Tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->count < y->count ? -1 : x->count > y->count;
}

/* Sorts the tensors by their place in the file. Returns NULL, or a complaint if there is a gap or an overlap between
 * them. */
static const char *check_places(Safetensors *s, const char *path, const char *data, size_t data_bytes)
{
    const char *end = data;
    qsort(s->tensor, (size_t)s->tensors, sizeof *s->tensor, by_place);
    for (int i = 0; i < s->tensors; i++) {
        const Tensor *t = &s->tensor[i];
        if (t->data != end) return complain("%s: tensor %s: does not begin where another ends", path, t->name);
        end += t->count * dtypes[t->dtype].size;
    }
    if (end != data + data_bytes)
        return complain("%s: its tensors hold %zu bytes, and %zu follow the header", path, (size_t)(end - data),
                        data_bytes);
    return NULL;
}

static const char *read_header(Safetensors *s, const char *path)
{
    uint64_t length = 0;
    if (s->bytes >= sizeof length) memcpy(&length, s->mapped, sizeof length);
    if (length == 0 || length > s->bytes - sizeof length)
        return complain("%s: not a safetensors file, or cut short", path);
    if (length > LARGEST_HEADER)
        return complain("%s: a header of %zu bytes; must be at most %d", path, (size_t)length, LARGEST_HEADER);
    const char *text = (const char *)s->mapped + sizeof length;
    cJSON *header;
    const char *problem = NULL, *complaint = json_parse(&header, text, length, path);
    if (complaint) return complaint;

    s->tensor = calloc((size_t)cJSON_GetArraySize(header) + 1, sizeof *s->tensor);
    if (!s->tensor) fatal("out of memory for %s", path);
    size_t data_bytes = s->bytes - sizeof length - length;
    for (const cJSON *entry = header->child; entry && !problem; entry = entry->next) {
        if (strcmp(entry->string, "__metadata__") == 0) continue;
        problem = read_entry(&s->tensor[s->tensors++], entry, text + length, data_bytes);
        if (problem) complaint = complain("%s: tensor %s: %s", path, entry->string, problem);
    }
    cJSON_Delete(header);
    return complaint ? complaint : check_places(s, path, text + length, data_bytes);
}

/* Opens and checks the file. Complaints name it as `called`. */
static const char *open_file(Safetensors **out, const char *path, const char *called)
{
    *out = NULL;
    struct stat info;
    int file = open(path, O_RDONLY | O_NONBLOCK); /* without O_NONBLOCK, opening a pipe waits for a writer */
    if (file < 0 || fstat(file, &info) != 0) return complain("%s: %s", called, strerror(errno));
    if (!S_ISREG(info.st_mode)) {
        close(file);
        return complain("%s: not a file", called);
    }
    Safetensors *s = calloc(1, sizeof *s);
    if (!s) fatal("out of memory for %s", path);
    s->bytes = (size_t)info.st_size;
    s->mapped = s->bytes ? mmap(NULL, s->bytes, PROT_READ, MAP_PRIVATE, file, 0) : NULL;
    close(file);
    const char *complaint =
        s->mapped == MAP_FAILED ? complain("%s: %s", called, strerror(errno)) : read_header(s, called);
    if (complaint) {
        safetensors_close(s);
        return complaint;
    }
    *out = s;
    return NULL;
}

const char *safetensors_open(Safetensors **file, const char *path)
{
    return open_file(file, path, path);
}

void safetensors_close(Safetensors *s)
{
    if (!s) return;
    if (s->mapped && s->mapped != MAP_FAILED) munmap(s->mapped, s->bytes);
    free(s->tensor);
    free(s);
}

const Tensor *safetensors_find(const Safetensors *s, const char *name)
{
    for (int t = 0; t < s->tensors; t++)
        if (strcmp(s->tensor[t].name, name) == 0) return &s->tensor[t];
    return NULL;
}

/* The format does not promise alignment, so each element is copied with memcpy. */
double tensor_at(const Tensor *t, size_t i)
{
    const char *at = (const char *)t->data + i * dtypes[t->dtype].size;
    switch (t->dtype) {
    case DTYPE_F64: {
        double x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    case DTYPE_I64: {
        int64_t x;
        memcpy(&x, at, sizeof x);
        return (double)x;
    }
    default: { /* a bfloat16 is the upper half of a float */
        uint32_t bits = 0;
        float x;
        size_t size = dtypes[t->dtype].size;
        memcpy((char *)&bits + sizeof bits - size, at, size);
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    }
}

/* Converts each element to acc on the host, then uploads this rank's shards. Returns false, and uploads nothing, if
 * an element is not finite in acc. */
static bool load_view(Params *params, const View *v, const Tensor *t, const Kernels *kernels)
{
    size_t whole = params_whole_size(v), bad = 0;
    acc *host = malloc(whole * sizeof *host);
    if (!host) fatal("out of memory for %s", v->name);
    for (size_t i = 0; i < whole; i++) {
        host[i] = (acc)tensor_at(t, i);
        bad += !isfinite(host[i]);
    }
    if (!bad) params_upload(params, kernels, v, host);
    free(host);
    return !bad;
}

/* Do the two tensors have the same shape and the same values? */
static bool is_copy(const Tensor *a, const Tensor *b)
{
    if (a->dims != b->dims || a->count != b->count || a->shape[0] != b->shape[0]) return false;
    for (size_t i = 0; i < a->count; i++)
        if (tensor_at(a, i) != tensor_at(b, i)) return false;
    return true;
}

/* Opens DIR/model.safetensors. It must have all tensors of `params`, in their whole shapes, and no others. */
static const char *open_weights(Safetensors **file, const Params *params, const char *dir)
{
    char path[4096], called[4200];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(called, sizeof called, "--model %.300s: model.safetensors", dir);
    const char *complaint = open_file(file, path, called);
    if (complaint) return complaint;
    for (int n = 0; n < params->views && !complaint; n++) {
        const View *v = &params->view[n];
        const Tensor *t = safetensors_find(*file, v->name);
        if (!t)
            complaint = complain("--model %s: model.safetensors has no tensor %s", dir, v->name);
        else if (t->dtype == DTYPE_I64)
            complaint = complain("--model %s: %s is of whole numbers", dir, v->name);
        else if (t->dims != (v->vector ? 1 : 2) || t->shape[t->dims - 1] != v->whole_cols ||
                 t->count != params_whole_size(v))
            complaint = complain("--model %s: %s has not the shape that config.json gives it", dir, v->name);
    }
    for (int i = 0; !complaint && i < (*file)->tensors; i++) {
        const char *name = (*file)->tensor[i].name; /* a file of a tied model may hold the head as a copy */
        if (!params_find(params, name) && strcmp(name, HEAD) != 0)
            complaint = complain("--model %s: %s is not part of the model that config.json describes", dir, name);
    }
    if (complaint) safetensors_close(*file);
    return complaint;
}

const char *safetensors_check_weights(const ModelConfig *model, const char *dir)
{
    Safetensors *file;
    Params table = params_table(model);
    const char *complaint = open_weights(&file, &table, dir);
    if (!complaint) safetensors_close(file);
    params_free(&table);
    return complaint;
}

const char *safetensors_load_weights(Params *params, const Kernels *kernels, const char *dir)
{
    Safetensors *file;
    const char *complaint = open_weights(&file, params, dir);
    if (complaint) return complaint;
    for (int n = 0; n < params->views && !complaint; n++) {
        const View *v = &params->view[n];
        if (!load_view(params, v, safetensors_find(file, v->name), kernels))
            complaint = complain("--model %s: %s holds a weight that is not finite", dir, v->name);
        comm_progress(); /* tells the watchdog that this rank works: loading may take long */
    }
    const Tensor *head = safetensors_find(file, HEAD);
    if (!complaint && head && !params_find(params, HEAD) && !is_copy(head, safetensors_find(file, EMBEDDING)))
        complaint = complain("--model %s: tie_word_embeddings is true, and %s differs from %s", dir, HEAD, EMBEDDING);
    safetensors_close(file);
    return complaint;
}
