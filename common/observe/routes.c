#include "observe/routes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/comm.h"
#include "kernels/memory.h"
#include "settings/outputs.h"

/* The file: this header; then for each step, micro-step and layer the k experts of each row of the micro-step, on all ranks,
 * in the order of the sequences. */
typedef struct {
    char magic[8];
    int64_t layers, experts, top_k, rows, micro_steps, steps;
} Header;

struct Routes {
    Model *model;
    const Batch *batch;
    Header header;
    const char *save, *follow;
    FILE *out; /* NULL: nothing is written yet */
    int in;
    uint16_t *layer;       /* [rows, k]  those of one layer */
    int *mine, *on_device; /* [S, k]  of this rank's rows, on the host and in the backend's memory */
    int64_t seen;          /* layers of micro-steps so far: one that is recomputed counts once */
    int64_t flips, choices;
};

size_t routes_row(const Model *model, const Batch *b, int i)
{
    const FeatureSeam *f = &model->seams.features;
    int row = f->stream_row ? f->stream_row(f->self, i, b->step_rows) : i;
    int id = b->host.id[model->micro_step.index * b->step_rows + row];
    return (size_t)b->share.reader * (size_t)b->sequences * (size_t)b->order.seq + (size_t)id;
}

static bool is_among(int expert, const uint16_t *experts, int k)
{
    for (int j = 0; j < k; j++)
        if (experts[j] == expert) return true;
    return false;
}

/* Where in the file the layer's choices begin. */
static int64_t place_of(const Routes *r, int64_t number)
{
    return (int64_t)sizeof r->header + number * r->header.rows * r->header.top_k * (int64_t)sizeof *r->layer;
}

static void read_layer(Routes *r, int64_t number)
{
    size_t bytes = (size_t)(r->header.rows * r->header.top_k) * sizeof *r->layer;
    if (pread(r->in, r->layer, bytes, (off_t)place_of(r, number)) != (ssize_t)bytes)
        fatal("--routes %s: has changed, or cannot be read", r->follow);
}

static void create_file(Routes *r)
{
    r->out = fopen(r->save, "wb");
    if (!r->out) fatal("--save-routes %s: %s", r->save, strerror(errno));
    output_write(r->out, "save-routes", r->save, &r->header, sizeof r->header);
}

/* Hook of the router: layer l has made its choices. */
static const int *chosen(void *self, int l, const int *choice, int rows)
{
    Routes *r = self;
    int k = (int)r->header.top_k;
    size_t count = (size_t)rows * (size_t)k;
    int64_t step = r->batch->step * r->header.micro_steps + r->model->micro_step.index;
    int64_t number = step * r->header.layers + l;
    bool first = number >= r->seen;
    r->model->kernels.download(r->mine, choice, count * sizeof *r->mine);
    if (first) r->seen = number + 1;
    if (*r->save) {
        if (!r->out) create_file(r);
        for (size_t c = 0; c < count; c++)
            r->layer[routes_row(r->model, r->batch, (int)c / k) * (size_t)k + c % (size_t)k] = (uint16_t)r->mine[c];
        if (first) output_write(r->out, "save-routes", r->save, r->layer, count * sizeof *r->layer);
        return NULL;
    }
    read_layer(r, number);
    for (int i = 0; i < rows; i++) {
        const uint16_t *to = r->layer + routes_row(r->model, r->batch, i) * (size_t)k;
        for (int j = 0; j < k; j++) r->flips += first && !is_among(r->mine[i * k + j], to, k);
        for (int j = 0; j < k; j++) r->mine[i * k + j] = to[j];
    }
    if (first) r->choices += (int64_t)count;
    r->model->kernels.upload(r->on_device, r->mine, count * sizeof *r->mine);
    return r->on_device;
}

static const char *open_file(Routes *r)
{
    Header found = {0};
    r->in = open(r->follow, O_RDONLY | O_NONBLOCK); /* a pipe without a writer would block */
    if (r->in < 0) return complain("--routes %s: %s", r->follow, strerror(errno));
    ssize_t got = read(r->in, &found, sizeof found);
    if (got != sizeof found || memcmp(found.magic, r->header.magic, sizeof found.magic) != 0)
        return complain("--routes %s: no file of --save-routes", r->follow);
    int64_t steps = r->header.steps;
    r->header.steps = found.steps;
    if (memcmp(&found, &r->header, sizeof found) != 0)
        return complain("--routes %s: of another model, --batch, --seq or --accumulate", r->follow);
    int64_t end = place_of(r, found.steps * found.micro_steps * found.layers);
    if (found.steps > INT32_MAX || found.steps < steps || lseek(r->in, 0, SEEK_END) != (off_t)end)
        return complain("--routes %s: has %lld steps, of which not all may be written; --steps is %lld", r->follow,
                        (long long)found.steps, (long long)steps);
    return NULL;
}

/* Do all experts that the file names exist? */
static const char *check_experts(Routes *r)
{
    size_t count = (size_t)(r->header.rows * r->header.top_k);
    for (int64_t n = 0; r->follow[0] && n < r->header.steps * r->header.micro_steps * r->header.layers; n++) {
        read_layer(r, n);
        for (size_t c = 0; c < count; c++) {
            size_t row = c - c % (size_t)r->header.top_k;
            if (r->layer[c] >= r->header.experts)
                return complain("--routes %s: names expert %d; the model has %d", r->follow, (int)r->layer[c],
                                (int)r->header.experts);
            if (is_among(r->layer[c], r->layer + row, (int)(c - row)))
                return complain("--routes %s: a row goes to expert %d twice", r->follow, (int)r->layer[c]);
        }
    }
    return NULL;
}

const char *routes_check(const char *save, const char *follow, const ModelConfig *model)
{
    const char *flag = *save ? "save-routes" : "routes", *path = *save ? save : follow;
    if (!*path) return NULL;
    if (*save && *follow) return complain("--save-routes %s: not with --routes", save);
    if (!model->moe.experts) return complain("--%s %s: goes with a model of experts", flag, path);
    if (*save && group_size(comm_world()) > 1) return complain("--save-routes %s: goes with one rank", save);
    return NULL;
}

const char *routes_open(Routes **routes, const char *save, const char *follow, Model *model, const Batch *batch,
                        long steps)
{
    const MoeConfig *c = &model->config.moe;
    *routes = NULL;
    if (!*save && !*follow) return NULL;
    const char *flag = *save ? "save-routes" : "routes", *path = *save ? save : follow;
    Routes *r = calloc(1, sizeof *r);
    if (!r) fatal("out of memory for --%s %s", flag, path);
    *r = (Routes){.model = model, .batch = batch, .save = save, .follow = follow};
    r->header = (Header){.magic = "routes",
                         .layers = model->config.layers,
                         .experts = c->experts,
                         .top_k = c->top_k,
                         .rows = (int64_t)batch->order.batch / batch->accumulate * batch->order.seq,
                         .micro_steps = batch->accumulate,
                         .steps = steps};
    size_t all = (size_t)(r->header.rows * r->header.top_k), mine = (size_t)batch->step_rows * (size_t)c->top_k;
    r->layer = malloc(all * sizeof *r->layer);
    r->mine = malloc(mine * sizeof *r->mine);
    if (!r->layer || !r->mine) fatal("out of memory for --%s %s", flag, path);
    memory_charge_twin(1); /* no part of what is trained */
    r->on_device = memory_alloc(mine * sizeof *r->on_device, MEMORY_BUFFERS);
    memory_charge_twin(0);
    const char *complaint = *follow ? open_file(r) : NULL;
    if (!complaint) complaint = check_experts(r);
    model->router.self = r;
    model->router.chosen = chosen;
    *routes = r;
    return complaint;
}

void routes_close(Routes *r, bool prints)
{
    if (!r) return;
    r->model->router.chosen = NULL;
    if (*r->save) {
        if (r->out) output_close(r->out, "save-routes", r->save);
    } else {
        int64_t sums[] = {r->flips, r->choices};
        comm_uncounted(1);
        if (r->model->router.group) comm_all_reduce(r->model->router.group, sums, 2, COMM_INT64, COMM_SUM);
        comm_uncounted(0);
        if (prints)
            printf("routes: %lld of %lld choices of experts would have been others\n", (long long)sums[0],
                   (long long)sums[1]);
        close(r->in);
    }
    memory_free(r->on_device);
    free(r->layer);
    free(r->mine);
    free(r);
}
