#include "observe/twin_routes.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/comm.h"
#include "kernels/memory.h"
#include "observe/routes.h"

struct TwinRoutes {
    Model *model, *twin;
    const Batch *batch;
    size_t rows;           /* of a micro-step, on all ranks */
    size_t size;           /* A L rows k */
    int64_t *expert;       /* [A, L, rows, k]  on the host: 1 + the expert; 0: nothing was noted */
    int *host, *on_device; /* [rows, k]  a layer's choices, on the host and in the backend's memory */
    int64_t flips;
};

/* Where the choices of a row begin: row `row` of all ranks, in layer l of the running micro-step. */
static int64_t *place(const TwinRoutes *r, const Model *m, int l, size_t row)
{
    size_t layer = (size_t)m->micro_step.index * (size_t)m->config.layers + (size_t)l;
    return r->expert + (layer * r->rows + row) * (size_t)m->config.moe.top_k;
}

/* Hook of the run's routers. */
static const int *note(void *self, int l, const int *choice, int rows)
{
    TwinRoutes *r = self;
    int k = r->model->config.moe.top_k;
    r->model->kernels.download(r->host, choice, (size_t)(rows * k) * sizeof *choice);
    for (int i = 0; i < rows; i++) {
        int64_t *to = place(r, r->model, l, routes_row(r->model, r->batch, i));
        for (int j = 0; j < k; j++) to[j] = 1 + r->host[i * k + j];
    }
    return NULL;
}

/* Hook of the twin's routers. The twin has all rows, in the order of the sequences. */
static const int *follow(void *self, int l, const int *choice, int rows)
{
    TwinRoutes *r = self;
    int k = r->twin->config.moe.top_k;
    r->twin->kernels.download(r->host, choice, (size_t)(rows * k) * sizeof *choice);
    for (int i = 0; i < rows; i++) {
        const int64_t *to = place(r, r->twin, l, (size_t)i);
        int *own = r->host + i * k;
        if (to[0] == 0) continue;
        for (int j = 0; j < k; j++) {
            int found = 0;
            while (found < k && to[found] != 1 + own[j]) found++;
            r->flips += found == k;
        }
        for (int j = 0; j < k; j++) own[j] = (int)to[j] - 1;
    }
    r->twin->kernels.upload(r->on_device, r->host, (size_t)(rows * k) * sizeof *r->host);
    return r->on_device;
}

TwinRoutes *twin_routes_create(Model *model, const Batch *batch)
{
    size_t k = (size_t)model->config.moe.top_k;
    if (!model->config.moe.experts) return NULL;
    TwinRoutes *r = calloc(1, sizeof *r);
    if (!r) fatal("out of memory for --verify");
    *r = (TwinRoutes){.model = model, .batch = batch};
    r->rows = (size_t)(batch->order.batch / batch->accumulate) * (size_t)batch->order.seq;
    r->size = (size_t)batch->accumulate * (size_t)model->config.layers * r->rows * k;
    r->expert = calloc(r->size, sizeof *r->expert);
    r->host = malloc(r->rows * k * sizeof *r->host);
    if (!r->expert || !r->host) fatal("out of memory for --verify");
    memory_charge_twin(1);
    r->on_device = memory_alloc(r->rows * k * sizeof *r->on_device, MEMORY_BUFFERS);
    memory_charge_twin(0);
    model->router.self = r;
    model->router.chosen = note;
    return r;
}

void twin_routes_share(TwinRoutes *r, Model *twin)
{
    if (!r) return;
    comm_all_reduce(comm_control(), r->expert, r->size, COMM_INT64, COMM_MAX); /* one rank has noted each row */
    r->twin = twin;
    r->flips = 0;
    if (!twin) return;
    twin->router.self = r;
    twin->router.chosen = follow;
}

int64_t twin_routes_end_step(TwinRoutes *r)
{
    if (!r) return 0;
    memset(r->expert, 0, r->size * sizeof *r->expert);
    return r->flips;
}

void twin_routes_free(TwinRoutes *r)
{
    if (!r) return;
    r->model->router.chosen = NULL;
    memory_free(r->on_device);
    free(r->expert);
    free(r->host);
    free(r);
}
