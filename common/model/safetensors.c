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

/* --- the weights of a model: views and the tensors of a file that hold them --- */

/* The experts' views hold the matrices of all experts, one below the other. A file holds each matrix as a tensor, under
 * the names of Qwen3-MoE or of Mixtral. The router, too, has two names. */
static bool is_of_experts(const View *v)
{
    return strstr(v->name, ".mlp.experts.") != NULL;
}

/* Tensors that make up the view: gate and up, or down, of each expert; or one. `expert_ff`: width of an expert. */
static int parts_of(const View *v, int experts)
{
    return !is_of_experts(v) ? 1 : strstr(v->name, "gate_up_proj") ? 2 * experts : experts;
}

/* Tensor number `part` of the view; NULL if there is none. `name[96]` gets its name, the first of the possible ones. */
static const Tensor *find_part(const Safetensors *file, const View *v, int part, char *name)
{
    static const char *const matrix[2][3] = {{"gate_proj", "up_proj", "down_proj"}, {"w1", "w3", "w2"}};
    static const char *const block[2] = {"mlp", "block_sparse_moe"};
    bool both = strstr(v->name, "gate_up_proj") != NULL;
    int layer = 0;
    const Tensor *t = safetensors_find(file, v->name);
    snprintf(name, 96, "%s", v->name);
    if (t || sscanf(v->name, "model.layers.%d.mlp.", &layer) != 1) return t;
    for (int style = 1; style >= 0 && !t; style--) {
        if (is_of_experts(v))
            snprintf(name, 96, "model.layers.%d.%s.experts.%d.%s.weight", layer, block[style], both ? part / 2 : part,
                     matrix[style][both ? part % 2 : 2]);
        else if (strstr(v->name, ".mlp.gate.weight"))
            snprintf(name, 96, "model.layers.%d.%s.gate.weight", layer, block[style]);
        t = safetensors_find(file, name);
    }
    return t;
}

/* Converts each element to acc on the host, then uploads this rank's shards. Returns false, and uploads nothing, if
 * an element is not finite in acc. */
static bool load_view(Params *params, const View *v, const Safetensors *file, int experts, const Kernels *kernels)
{
    size_t whole = params_whole_size(v), bad = 0, at = 0;
    char name[96];
    acc *host = malloc(whole * sizeof *host);
    if (!host) fatal("out of memory for %s", v->name);
    for (int part = 0; part < parts_of(v, experts); part++) {
        const Tensor *t = find_part(file, v, part, name);
        for (size_t i = 0; i < t->count; i++, at++) {
            host[at] = (acc)tensor_at(t, i);
            bad += !isfinite(host[at]);
        }
    }
    CHECK(at == whole);
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

/* Does the file have all tensors of the view, in their whole shapes? */
static const char *check_view(const Safetensors *file, const View *v, int experts, const char *dir)
{
    int parts = parts_of(v, experts), rows = v->whole_rows / parts;
    char name[96];
    for (int part = 0; part < parts; part++) {
        const Tensor *t = find_part(file, v, part, name);
        if (!t) return complain("--model %s: model.safetensors has no tensor %s", dir, name);
        if (t->dtype == DTYPE_I64) return complain("--model %s: %s is of whole numbers", dir, name);
        if (t->dims != (v->vector ? 1 : 2) || t->shape[t->dims - 1] != v->whole_cols ||
            t->count != (size_t)rows * (size_t)v->whole_cols)
            return complain("--model %s: %s has not the shape that config.json gives it", dir, name);
    }
    return NULL;
}

/* Tensors of the file that are part of the model, if check_view accepts all views. */
static int tensors_of(const Params *params, int experts)
{
    int count = 0;
    for (const Params *p = params; p; p = p->next)
        for (int n = 0; n < p->views; n++) count += parts_of(&p->view[n], experts);
    return count;
}

/* Is the tensor part of the model? */
static bool is_known(const Safetensors *file, const Tensor *t, const Params *params, int experts)
{
    char name[96];
    for (const Params *p = params; p; p = p->next)
        for (int n = 0; n < p->views; n++)
            for (int part = 0; part < parts_of(&p->view[n], experts); part++)
                if (find_part(file, &p->view[n], part, name) == t) return true;
    return false;
}

/* Opens DIR/model.safetensors. It must have all tensors of `params`, and no others. */
static const char *open_weights(Safetensors **file, const Params *params, int experts, const char *dir)
{
    char path[4096], called[4200];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    snprintf(called, sizeof called, "--model %.300s: model.safetensors", dir);
    const char *complaint = open_file(file, path, called);
    if (complaint) return complaint;
    for (const Params *p = params; p; p = p->next)
        for (int n = 0; n < p->views && !complaint; n++) complaint = check_view(*file, &p->view[n], experts, dir);
    /* a file of a tied model may hold the head as a copy */
    bool copy = safetensors_find(*file, HEAD) && !params_find(params, HEAD);
    bool others = (*file)->tensors != tensors_of(params, experts) + copy;
    for (int i = 0; !complaint && others && i < (*file)->tensors; i++) {
        const Tensor *t = &(*file)->tensor[i];
        if (!is_known(*file, t, params, experts) && strcmp(t->name, HEAD) != 0)
            complaint = complain("--model %s: %s is not part of the model that config.json describes", dir, t->name);
    }
    if (complaint) safetensors_close(*file);
    return complaint;
}

const char *safetensors_check_weights(const ModelConfig *model, const char *dir)
{
    Safetensors *file;
    Params table = params_table(model), experts = {0};
    if (model->moe.experts) experts = experts_table(model, 1, 0), table.next = &experts;
    const char *complaint = open_weights(&file, &table, model->moe.experts, dir);
    if (!complaint) safetensors_close(file);
    params_free(&table);
    params_free(&experts);
    return complaint;
}

const char *safetensors_load_weights(Params *params, const ModelConfig *model, const Kernels *kernels, const char *dir)
{
    Safetensors *file;
    int experts = model->moe.experts;
    const char *complaint = open_weights(&file, params, experts, dir);
    if (complaint) return complaint;
    for (Params *p = params; p; p = p->next)
        for (int n = 0; n < p->views && !complaint; n++) {
            const View *v = &p->view[n];
            if (!load_view(p, v, file, experts, kernels))
                complaint = complain("--model %s: %s holds a weight that is not finite", dir, v->name);
            comm_progress(); /* tells the watchdog that this rank works: loading may take long */
        }
    const Tensor *head = safetensors_find(file, HEAD);
    if (!complaint && head && !params_find(params, HEAD) && !is_copy(head, safetensors_find(file, EMBEDDING)))
        complaint = complain("--model %s: tie_word_embeddings is true, and %s differs from %s", dir, HEAD, EMBEDDING);
    safetensors_close(file);
    return complaint;
}
