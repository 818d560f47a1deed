#include "ddp.h"

#include <stdlib.h>

#include "base/bug.h"
#include "base/error.h"

/* --- buckets --- */

Ddp ddp_create(Params *params, Group *group, DdpOptions options)
{
    Ddp ddp = {.params = params, .group = group, .options = options};
    group_open_device(group, params->grads);
    double full = options.bucket_mb * 1048576 / sizeof(acc); /* elements */
    ddp.bucket = calloc((size_t)params->units, sizeof *ddp.bucket);
    if (!ddp.bucket) fatal("out of memory for the buckets");

    /* Walk the units as the backward pass finishes them, from the last layer to the root. */
    Bucket *open = NULL;
    for (int u = params->units - 1; u >= 0; u--) {
        if (!open) {
            open = &ddp.bucket[ddp.buckets++];
            open->last = u;
        }
        open->first = u;
        open->offset = params->unit[u].offset;
        open->count += params->unit[u].count;
        if (options.bucket_mb > 0 && (double)open->count >= full) open = NULL;
    }
    return ddp;
}

void ddp_free(Ddp *ddp)
{
    free(ddp->bucket);
    *ddp = (Ddp){0};
}

/* --- the step --- */

static void start(Ddp *ddp, Bucket *bucket)
{
    bucket->work =
        comm_start_all_reduce(ddp->group, ddp->params->grads + bucket->offset, bucket->count, COMM_ACC, COMM_SUM);
}

static void wait(Bucket *bucket)
{
    comm_wait(bucket->work);
    bucket->work = NULL;
}

/* The bucket that is complete with this unit, the nearest to the root of those in it; NULL if none is. */
static Bucket *completed_by(const Ddp *ddp, int unit)
{
    for (int b = 0; b < ddp->buckets; b++)
        if (ddp->bucket[b].first == unit) return &ddp->bucket[b];
    return NULL;
}

/* The parameter seam: a unit's gradients are complete on this rank. */
static void after_backward(void *self, int unit)
{
    Ddp *ddp = self;
    Bucket *bucket = completed_by(ddp, unit);
    bool reduces = ddp->last_micro_step || BUG(reduce_every_micro_step);
    if (!bucket || !reduces || ddp->options.bucket_mb == 0) return;
    if (BUG(forget_last_bucket) && unit == 0) return;
    start(ddp, bucket);
    bool overlaps = ddp->options.overlap && ddp->last_micro_step; /* it is the last, but for the bug above */
    if (!overlaps) wait(bucket);
}

ParameterSeam ddp_seam(Ddp *ddp)
{
    return (ParameterSeam){.self = ddp, .after_backward = after_backward};
}

void ddp_begin(Ddp *ddp, bool last_micro_step)
{
    ddp->last_micro_step = last_micro_step;
}

void ddp_finish(Ddp *ddp)
{
    if (ddp->options.bucket_mb == 0) start(ddp, &ddp->bucket[0]); /* the naive form: everything, now */
    for (int b = 0; b < ddp->buckets; b++) wait(&ddp->bucket[b]);
}
